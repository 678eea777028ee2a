"""A plan of many tables beside dividing all tables in one way: what each server computes, sends."""
