package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	f := func(way direction, values ...float64) *figure { return newFigure("s", "n", "", way, values) }
	for _, c := range []struct {
		name          string
		before, after *figure
		want          string
	}{
		{"overlapping", f(more, 1, 2, 3), f(more, 2.5, 4, 5), same},
		{"apart upwards", f(more, 1, 2, 3), f(more, 4, 5, 6), improved},
		{"apart downwards", f(more, 4, 5, 6), f(more, 1, 2, 3), worsened},
		{"less is better", f(less, 4, 5, 6), f(less, 1, 2, 3), improved},
		{"apart but tiny", f(more, 100, 100, 100), f(more, 101, 101, 101), same},
		{"neither way", f("", 1, 2, 3), f("", 4, 5, 6), changed},
		{"from nothing", f(less, 0, 0, 0), f(less, 1, 1, 1), worsened},
		{"nothing at all", f(less, 0, 0, 0), f(less, 0, 0, 0), same},
	} {
		if got := judge(c.before, c.after); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestGoals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		way  direction
		goal float64
		met  bool
	}{{more, 2, true}, {more, 2.1, false}, {less, 2, true}, {less, 1.9, false}} {
		if f := newFigure("s", "n", "", c.way, []float64{1, 2, 9}).goal(c.goal); f.met() != c.met {
			t.Errorf("median 2, %s, goal %v: %v", c.way, c.goal, f.met())
		}
	}
	if !newFigure("s", "n", "", less, []float64{1}).met() {
		t.Error("a figure without a goal misses a goal")
	}
}

// TestCompareFiles writes two runs to files, reads and compares them, and prints the table.
func TestCompareFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name string, list ...*figure) string {
		path := filepath.Join(dir, name)
		if err := (report{Figures: list}).write(path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	a := file("a.json", newFigure("one", "x", "1/s", more, []float64{1, 2, 3}), newFigure("gone", "x", "", more, []float64{1}))
	b := file("b.json", newFigure("one", "x", "1/s", more, []float64{4, 5, 6}).goal(9), newFigure("new", "x", "", more, []float64{1}))
	var out bytes.Buffer
	if err := (&compareCmd{Before: a, After: b}).Run(&console{out: &out}); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); !strings.Contains(got, "+150 %") || !strings.Contains(got, improved) ||
		strings.Contains(got, "gone") || strings.Contains(got, "new") {
		t.Errorf("compare prints\n%s", got)
	}
	if err := (&compareCmd{Before: a, After: file("empty.json", newFigure("s", "n", "", more, nil))}).Run(&console{out: &out}); err == nil {
		t.Error("a figure without values was compared")
	}
	out.Reset()
	r, err := readReport(b)
	if err != nil {
		t.Fatal(err)
	}
	if r.print(&out); !strings.Contains(out.String(), "MISSED") || !strings.Contains(out.String(), "4 – 6") {
		t.Errorf("the table is\n%s", out.String())
	}
}

func TestNumber(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{0: "0", 3: "3", 0.3456: "0.346", 12.345: "12.3", 123.4: "123", 7460.2: "7460"} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %q, want %q", v, got, want)
		}
	}
}

// TestMust: one bad round is enough to miss a goal that must be reached.
func TestMust(t *testing.T) {
	t.Parallel()
	b := &bench{}
	rounds := []float64{0, 1, 0}
	same := func(v float64) float64 { return v }
	addOf(b, "x", "few", "", less, rounds, same).goal(0)
	if !b.figures[0].met() || b.missed() != nil {
		t.Error("one bad round misses a goal for the median")
	}
	addMustBeZero(b, "x", "lost", rounds, same)
	if b.figures[1].met() || b.missed() == nil {
		t.Error("a round that lost an event meets its goal")
	}
}

func TestScaled(t *testing.T) {
	t.Parallel()
	s := settings{Scale: 0.01}
	if got := s.scaled(1000, 1); got != 10 {
		t.Errorf("a hundredth of 1000 is %d", got)
	}
	if got := s.scaled(1000, 20); got != 20 {
		t.Errorf("at least 20 is %d", got)
	}
}
