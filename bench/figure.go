package main

import "slices"

// direction is the direction in which a figure improves.
type direction string

const (
	more direction = "more"
	less direction = "less"
)

// quantity is what a scenario measures.
type quantity struct {
	Scenario string    `json:"scenario"`
	Name     string    `json:"name"`
	Unit     string    `json:"unit"`
	Better   direction `json:"better,omitempty"` // empty: neither way
	Goal     *float64  `json:"goal,omitempty"`   // the worst acceptable median
}

// figure is one measured quantity, with its value in every round.
type figure struct {
	quantity
	Every  bool      `json:"every,omitempty"` // the goal is for every value
	Must   bool      `json:"must,omitempty"`  // the goal holds on any machine, however busy
	Median float64   `json:"median"`
	Values []float64 `json:"values"`
}

func newFigure(scenario, name, unit string, way direction, values []float64) *figure {
	return &figure{quantity: quantity{Scenario: scenario, Name: name, Unit: unit, Better: way}, Median: median(values), Values: values}
}

// goal sets the worst acceptable median.
func (f *figure) goal(limit float64) *figure {
	f.Goal = &limit
	return f
}

func (f *figure) lowest() float64  { return slices.Min(f.Values) }
func (f *figure) highest() float64 { return slices.Max(f.Values) }

// met reports whether the median, or every value, reaches the goal. It returns true without a
// goal.
func (f *figure) met() bool {
	worst := f.Median
	switch {
	case f.Goal == nil:
		return true
	case f.Better == more:
		if f.Every {
			worst = f.lowest()
		}
		return worst >= *f.Goal
	default:
		if f.Every {
			worst = f.highest()
		}
		return worst <= *f.Goal
	}
}
