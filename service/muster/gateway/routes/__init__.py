"""One module for each group of routes. They read the request, call what does the work, and write the answer."""
