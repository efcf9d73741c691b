"""What tests share: models, data, processes, and trainings that can be killed."""
