"""Where the time goes and why: the device with its measured limits, the profile of a variant, the words for both."""
