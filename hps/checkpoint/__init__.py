"""What a checkpoint holds beside rows, as blobs, and how one is named: tags and ids;
and one of which several stores keep a part each."""
