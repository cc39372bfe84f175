"""Fan a plan out to the shards, decode their Arrow answers, merge them in DuckDB."""
