"""Everything a node may ask of the world outside, as one small set of seams and the real ones."""
