"""Answers as pictures: the dicts that commands print as JSON become SVG, and HTML without a script.

Nothing here decides or measures: every figure is one of the answer. The dashboard, the report and notebooks show
the same pictures. They are read in light and dark, by colours that the colour-blind tell apart and never by colour
alone, and every picture has its words (`<title>`) for who cannot see it.
"""
