"""A model's sizes and a request, as problems of the planner and times of the whole."""
