package console

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"spendhook/dispatcher/traffic"
	"spendhook/subscribers/health"
)

// threeHours returns the points of three hours, and their begin and end.
func threeHours() (points []traffic.Point, begin, end time.Time) {
	begin = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	points = make([]traffic.Point, 180)
	for i := range points {
		points[i].At = begin.Add(time.Duration(i) * time.Minute)
	}
	return points, begin, begin.Add(180 * time.Minute)
}

// parseHistory parses changes such as "30 paused, 40 resumed": the minute since begin, and the change.
func parseHistory(text string, begin time.Time) (history []health.Change) {
	for change := range strings.SplitSeq(text, ", ") {
		var minute int
		var what string
		if n, _ := fmt.Sscan(change, &minute, &what); n == 2 {
			history = append(history, health.Change{At: begin.Add(time.Duration(minute) * time.Minute), What: what})
		}
	}
	return history
}

// TestStateTimeline: changes within the shown time and before it determine the periods.
func TestStateTimeline(t *testing.T) {
	t.Parallel()
	points, begin, now := threeHours()
	for _, c := range []struct {
		history string // minute and change, the oldest first
		state   string // now
		want    string // from, width and state
		text    string
	}{
		{"", "healthy", "", "neither failing, paused nor disabled"},
		{"", "paused", "0+180 Paused", "paused for 3 h"},
		{"30 paused, 40 resumed", "healthy", "30+10 Paused", "paused for 10 min"},
		{"-30 paused, 40 resumed", "healthy", "0+40 Paused", "paused for 40 min"},
		{"40 resumed", "healthy", "0+40 Paused", "paused for 40 min"},
		{"-30 paused", "paused", "0+180 Paused", "paused for 3 h"},
		{"-90 paused, -80 resumed", "healthy", "", "neither failing, paused nor disabled"},
		{"10 failing, 20 disabled, 50 enabled", "healthy", "10+10 Failing; 20+30 Disabled", "failing for 10 min, disabled for 30 min"},
		{
			"10 failing, 20 paused, 30 disabled, 40 enabled, 60 resumed", "healthy", "10+10 Failing; 20+10 Paused; 30+10 Disabled; 40+20 Paused",
			"failing for 10 min, paused for 30 min, disabled for 10 min",
		},
		{"10 failing, 11 recovered, 170 failing", "failing", "10+1 Failing; 170+10 Failing", "failing for 11 min"},
		{"10 disabled, 15 paused", "disabled", "10+170 Disabled", "disabled for 2 h 50 min"},
	} {
		got := stateTimeline(points, parseHistory(c.history, begin), c.state, time.Time{}, now)
		var parts []string
		for _, s := range got {
			parts = append(parts, fmt.Sprintf("%g+%g %s", s.From, s.Width, s.State.Text))
		}
		if text := strings.Join(parts, "; "); text != c.want || statesText(got) != c.text {
			t.Errorf("%q, now %s: %q (%s), want %q (%s)", c.history, c.state, text, statesText(got), c.want, c.text)
		}
	}
}

// TestStateTimelineBegins: the timeline begins where the history is complete.
func TestStateTimelineBegins(t *testing.T) {
	t.Parallel()
	points, begin, now := threeHours()
	if got := stateTimeline(nil, nil, "paused", time.Time{}, now); got != nil {
		t.Errorf("no points: %v", got)
	}
	created := begin.Add(170 * time.Minute)
	if got := stateTimeline(points, nil, "disabled", knownSince(created, nil), now); len(got) != 1 || got[0].For != 10*time.Minute || got[0].From != 170 {
		t.Errorf("created ten minutes ago: %+v", got)
	}
	full := make([]health.Change, maxHistory)
	full[0].At = begin
	if got := knownSince(created, full); !got.Equal(begin) {
		t.Errorf("a full history is known since %v", got)
	}
}
