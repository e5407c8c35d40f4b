"""Questions to running state, as any process of a job takes them: who is asked, over which link, and the pages."""
