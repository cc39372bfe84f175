"""One module for each kind of shard, all behind `base.Shard`."""
