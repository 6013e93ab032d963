//! Whole-system tests share what is here.
