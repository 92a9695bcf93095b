"""What is asked: models, jobs, plans and their measured profiles."""
