"""From one SELECT over the whole job to subqueries for the shards: pure functions on syntax trees, no network."""
