package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The generated part of docs/benchmarks.md is between these lines.
const (
	pageBegin = "<!-- `go run ./bench publish` writes the tables from here -->\n"
	pageEnd   = "<!-- to here -->\n"
)

// fillPage returns the page with the tables of these runs.
func fillPage(page []byte, runs []publishedRun) ([]byte, error) {
	before, rest, ok := strings.Cut(string(page), pageBegin)
	_, after, ok2 := strings.Cut(rest, pageEnd)
	if !ok || !ok2 {
		return nil, errors.New("benchmarks.md: the lines around the generated tables are missing")
	}
	return []byte(before + pageBegin + "\n" + tables(runs) + "\n" + pageEnd + after), nil
}

// tables returns a table of the runs, and one of their figures by scenario, the newest run first.
func tables(runs []publishedRun) string {
	var b strings.Builder
	row := func(cells ...string) { b.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	row("run", "build", "machine", "lengths and scale")
	b.WriteString(strings.Repeat("|---", 4) + "|\n")
	type line struct {
		publishedRun
		publishedFigure
	}
	var lines []line
	for _, r := range slices.Backward(runs) {
		row(r.title(), r.Build, r.Machine, r.Settings)
		for _, f := range r.Figures {
			lines = append(lines, line{r, f})
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.Scenario, b.Scenario) })
	b.WriteString("\n")
	row("scenario", "figure", "goal", "median (lowest – highest)", "unit", "rounds", "run", "", "remarks")
	b.WriteString(strings.Repeat("|---", 9) + "|\n")
	for _, l := range lines {
		row("`"+l.Scenario+"`", l.publishedFigure.Name, l.goalText(), l.value(), l.Unit, l.rounds(), l.title(), l.state(l.Stale), l.Note)
	}
	return b.String()
}

// title has the name of a run, its date and the commit of the build.
func (r publishedRun) title() string {
	commit := r.Commit[:min(8, len(r.Commit))]
	return strings.TrimPrefix(fmt.Sprintf("%s, %s, %s", r.Name, r.Date, cmp.Or(commit, "commit not recorded")), ", ")
}

func (f publishedFigure) value() string {
	text := number(f.Median)
	if f.Lowest != nil && f.Highest != nil && *f.Lowest < *f.Highest {
		text += fmt.Sprintf(" (%s – %s)", number(*f.Lowest), number(*f.Highest))
	}
	return text
}

func (f publishedFigure) rounds() string {
	if f.Rounds == 0 {
		return ""
	}
	return strconv.Itoa(f.Rounds)
}

func (f publishedFigure) state(stale bool) string {
	var list []string
	switch {
	case f.Goal == nil:
	case f.Missed:
		list = append(list, "missed")
	default:
		list = append(list, "reached")
	}
	if stale {
		list = append(list, "**stale**")
	}
	return strings.Join(list, ", ")
}
