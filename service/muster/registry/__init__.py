"""Jobs, generations and ranks: who should be there, who is, since when."""
