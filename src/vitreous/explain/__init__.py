"""What a model saw: attention, relevance, occlusion, and how good such an explanation is."""
