package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

type compareCmd struct {
	Before string `arg:"" help:"JSON file of a run."`
	After  string `arg:"" help:"JSON file of a later run on the same machine."`
}

// Run prints a table of the figures of both runs.
func (c *compareCmd) Run(term *console) error {
	before, err := readReport(c.Before)
	if err != nil {
		return err
	}
	after, err := readReport(c.After)
	if err != nil {
		return err
	}
	printChanges(term.out, compare(before.Figures, after.Figures))
	return nil
}

// change is one figure in two runs.
type change struct {
	before, after *figure
	verdict       string
}

const (
	same     = "within the noise"
	changed  = "changed"
	improved = "BETTER"
	worsened = "WORSE"
)

// compare returns the figures that are in both lists, in the order of after.
func compare(before, after []*figure) []change {
	known := make(map[[2]string]*figure, len(before))
	for _, f := range before {
		known[[2]string{f.Scenario, f.Name}] = f
	}
	var list []change
	for _, f := range after {
		if was := known[[2]string{f.Scenario, f.Name}]; was != nil {
			list = append(list, change{was, f, judge(was, f)})
		}
	}
	return list
}

// leastChange is the smallest change of a median that is reported, as a share.
const leastChange = 0.02

// judge reports a change when every value of one run is above every value of the other, and the
// medians are far enough apart. By chance alone the first condition holds in one case of ten with
// three rounds, and in one of 126 with five.
func judge(before, after *figure) string {
	apart := before.highest() < after.lowest() || after.highest() < before.lowest()
	moved := after.Median - before.Median
	small := moved*moved <= leastChange*leastChange*before.Median*before.Median
	switch {
	case !apart || small:
		return same
	case after.Better == "":
		return changed
	case (moved > 0) == (after.Better == more):
		return improved
	default:
		return worsened
	}
}

func printChanges(out io.Writer, list []change) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "scenario\tfigure\tbefore\tafter\tunit\tchange\t")
	for _, c := range list {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", c.after.Scenario, c.after.Name,
			number(c.before.Median), number(c.after.Median), c.after.Unit, percent(c.before.Median, c.after.Median), c.verdict)
	}
	_ = w.Flush()
}

func percent(before, after float64) string {
	if before == 0 {
		return ""
	}
	return fmt.Sprintf("%+.0f %%", 100*(after-before)/before)
}
