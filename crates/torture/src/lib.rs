//! The whole engine under simulation, against a model
