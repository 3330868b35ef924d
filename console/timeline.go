package console

import (
	"fmt"
	"strings"
	"time"

	"spendhook/dispatcher/traffic"
	"spendhook/subscribers/health"
)

// resultStretch is a sequence of points whose attempts have the same result.
type resultStretch struct {
	From, Points int // number of the first point, and how many points
	Result       label
}

// results are the results that the attempts of a point can have in sum.
var results = struct{ idle, well, mixed, failing label }{
	label{"Nothing sent", "none"}, label{"All delivered", good}, label{"Some failed", warn}, label{"All failed", bad},
}

func resultTimeline(points []traffic.Point) (all []resultStretch) {
	for i, p := range points {
		result := results.mixed
		switch {
		case p.Attempts() == 0:
			result = results.idle
		case p.Failed == 0:
			result = results.well
		case p.Delivered == 0:
			result = results.failing
		}
		if n := len(all); n > 0 && all[n-1].Result == result {
			all[n-1].Points++
		} else {
			all = append(all, resultStretch{i, 1, result})
		}
	}
	return all
}

// resultsText describes a timeline in words.
func resultsText(all []resultStretch, step string) string {
	n := map[label]int{}
	for _, s := range all {
		n[s.Result] += s.Points
	}
	var parts []string
	for _, result := range []label{results.well, results.mixed, results.failing, results.idle} {
		if n[result] > 0 {
			unit := step + "s"
			if n[result] == 1 {
				unit = step
			}
			parts = append(parts, fmt.Sprintf("%s in %d %s", strings.ToLower(result.Text), n[result], unit))
		}
	}
	return strings.Join(parts, ", ")
}

// stateStretch is a period in which a subscriber was failing, paused or disabled.
type stateStretch struct {
	From, Width float64 // in points
	State       label
	At          time.Time
	For         time.Duration
}

// maxHistory is the number of changes that are stored for a subscriber.
const maxHistory = 50

// knownSince returns the time from which the history of a subscriber is complete.
func knownSince(created time.Time, history []health.Change) time.Time {
	if len(history) >= maxHistory {
		return history[0].At
	}
	return created
}

// stateTimeline returns the periods from the first point, or from known if that is later, until
// now. history has the changes of the subscriber, the oldest first; state is its present state.
func stateTimeline(points []traffic.Point, history []health.Change, state string, known, now time.Time) (all []stateStretch) {
	if len(points) < 2 {
		return nil
	}
	begin, step := points[0].At, points[1].At.Sub(points[0].At)
	was, since := conditionBefore(history, state), begin
	if known.After(begin) {
		since = known
	}
	add := func(end time.Time) {
		if length := end.Sub(since); length > 0 && was.state() != "healthy" {
			all = append(all, stateStretch{
				From: float64(since.Sub(begin)) / float64(step), Width: float64(length) / float64(step),
				State: statusOf(was.state()), At: since, For: length,
			})
		}
	}
	for _, c := range history {
		next := was.after(c.What)
		if next.state() != was.state() && c.At.After(since) {
			add(c.At)
			since = c.At
		}
		was = next
	}
	add(now)
	return all
}

// condition is what determines the state of a subscriber.
type condition struct{ disabled, paused, failing bool }

func (c condition) after(change string) condition {
	switch change {
	case "disabled", "enabled":
		c.disabled = change == "disabled"
		c.failing = c.failing && c.disabled // enabling the subscriber resets failing
	case "paused", "resumed":
		c.paused = change == "paused"
	case "failing", "recovered":
		c.failing = change == "failing"
	}
	return c
}

func (c condition) state() string {
	switch {
	case c.disabled:
		return "disabled"
	case c.paused:
		return "paused"
	case c.failing:
		return "failing"
	}
	return "healthy"
}

// conditionBefore returns the condition before the first change. A field was true if the first
// change of this field ends it. A field without a change has its current value.
func conditionBefore(history []health.Change, state string) condition {
	was := func(begin, end string) bool {
		for _, c := range history {
			if c.What == begin || c.What == end {
				return c.What == end
			}
		}
		return state == begin
	}
	return condition{disabled: was("disabled", "enabled"), paused: was("paused", "resumed"), failing: was("failing", "recovered")}
}

// statesText describes in words how long a subscriber was in each state.
func statesText(all []stateStretch) string {
	if len(all) == 0 {
		return "neither failing, paused nor disabled"
	}
	lengths := map[string]time.Duration{}
	for _, s := range all {
		lengths[s.State.Text] += s.For
	}
	var parts []string
	for _, state := range []string{"failing", "paused", "disabled"} {
		if text := statusOf(state).Text; lengths[text] > 0 {
			parts = append(parts, state+" for "+shortDuration(lengths[text]))
		}
	}
	return strings.Join(parts, ", ")
}
