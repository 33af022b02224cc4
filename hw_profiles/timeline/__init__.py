"""When things happen: tasks on resources, streams and events, pipelines, transfers."""
