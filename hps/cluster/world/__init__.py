"""What the ranks of a training do together: channels, agreement, leaving, blobs."""
