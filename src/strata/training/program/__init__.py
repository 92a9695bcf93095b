"""What a training program does for the scheduler (`client`), and a real small one without torch (`small`)."""
