"""`--task=request`: a whole request's times, stage by stage, and what a change of one is worth.

flags -> flag_values -> hw_profiles.plan_request -> rows (for programs), blocks (for people)
"""
