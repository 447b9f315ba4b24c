"""What a training run did: its history as it goes, and one page of plots of several runs."""
