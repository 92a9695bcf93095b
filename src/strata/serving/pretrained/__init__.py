"""Models of real weights: a folder as Hugging Face lays it out, and its layers as transformers' own classes.

`folder` reads what can be read without torch (sizes, precision, which file has which tensor, the digest);
`tokenizer` is the gateway's. `checkpoint` finds and reads tensors, `layers` makes transformers' layers of them:
these are the worker's, and need torch.
"""

import os

# A folder is all there is: transformers would ask its hub about some. Read when it is imported.
os.environ["HF_HUB_OFFLINE"] = "1"
