"""An agent that calls tools until its goal is reached, and survives the loss of its worker."""
