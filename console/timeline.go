package console

import (
	"fmt"
	"strings"
	"time"

	"spendhook/dispatcher/traffic"
	"spendhook/subscribers/health"
)

// spell is a part of a subscriber's timeline with one state.
type spell struct {
	From, Points int // in points
	State        label
}

var spellStates = struct{ idle, well, mixed, failing label }{
	label{"Nothing sent", "none"}, label{"All delivered", good}, label{"Some failed", warn}, label{"All failed", bad},
}

func timeline(points []traffic.Point) (spells []spell) {
	for i, p := range points {
		state := spellStates.mixed
		switch {
		case p.Attempts() == 0:
			state = spellStates.idle
		case p.Failed == 0:
			state = spellStates.well
		case p.Delivered == 0:
			state = spellStates.failing
		}
		if n := len(spells); n > 0 && spells[n-1].State == state {
			spells[n-1].Points++
		} else {
			spells = append(spells, spell{i, 1, state})
		}
	}
	return spells
}

// timelineText describes a timeline in words.
func timelineText(spells []spell, step string) string {
	n := map[label]int{}
	for _, s := range spells {
		n[s.State] += s.Points
	}
	var parts []string
	for _, state := range []label{spellStates.well, spellStates.mixed, spellStates.failing, spellStates.idle} {
		if n[state] > 0 {
			unit := step + "s"
			if n[state] == 1 {
				unit = step
			}
			parts = append(parts, fmt.Sprintf("%s in %d %s", strings.ToLower(state.Text), n[state], unit))
		}
	}
	return strings.Join(parts, ", ")
}

// stay is a stretch of time in which a subscriber was failing, paused or disabled.
type stay struct {
	From, Width float64 // in points
	State       label
	At          time.Time
	For         time.Duration
}

// maxHistory is how many changes of a subscriber are kept.
const maxHistory = 50

// knownSince is the time from which the history of a subscriber is complete.
func knownSince(created time.Time, history []health.Change) time.Time {
	if len(history) >= maxHistory {
		return history[0].At
	}
	return created
}

// stays are those between the first point and now, but not before known: from the changes
// of the subscriber, the oldest first, and its state now.
func stays(points []traffic.Point, history []health.Change, state string, known, now time.Time) (all []stay) {
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
			all = append(all, stay{
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

// condition is the condition of a subscriber at a time.
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

// conditionBefore returns the condition before the first change. A condition that a change ends
// was true before it. A condition that no change is about is the current one.
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

// staysText describes in words how long a subscriber was in each state.
func staysText(all []stay) string {
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
