package main

import (
	"strings"
	"testing"
)

// A cost is compared with the one that was published last.
func TestPrintCosts(t *testing.T) {
	t.Parallel()
	cost := func(scenario, name string, value float64) *figure {
		return newFigure(scenario, name, "µs", less, []float64{value})
	}
	run := func(list ...*figure) (r publishedRun) {
		for _, f := range list {
			r.Figures = append(r.Figures, publishedFigure{quantity: f.quantity, Median: f.Median})
		}
		return r
	}
	var out strings.Builder
	printCosts(&out, []*figure{
		cost("one", daemonCPU, 111), cost("one", redisCPU, 54), cost("one", "load CPU a delivery", 9), cost("batch", daemonCPU, 30),
	}, []publishedRun{run(cost("one", daemonCPU, 300)), run(cost("one", daemonCPU, 100), cost("one", redisCPU, 50))})
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"scenario figure published now unit change",
		"one daemon CPU a delivery 100 111 µs +11 % WORSE",
		"one redis CPU a delivery 50 54 µs +8 %",
		"batch daemon CPU a delivery 0 30 µs not published",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
