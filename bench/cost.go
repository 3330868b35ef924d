package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// costCmd measures for a minute what a delivery costs, and compares it with the published figures.
type costCmd struct {
	Spendhook string `default:"bin/spendhook" help:"The daemon's program."`
	Docs      string `default:"docs" help:"Directory of benchmarks.json."`
}

// Run prints the costs. A higher one is no error: the published figures may be of another machine.
func (c *costCmd) Run(ctx context.Context, term *console) error {
	published, err := readPublished(c.Docs)
	if err != nil {
		return err
	}
	chosen, err := choose([]string{"one", "batch", "fanout"})
	if err != nil {
		return err
	}
	b := &bench{progress: term.err, settings: settings{Spendhook: c.Spendhook, Rounds: 3, LoadFor: 3 * time.Second, BareFor: time.Second}}
	if err := b.runAll(ctx, chosen); err != nil {
		return err
	}
	printCosts(term.out, b.figures, published)
	return nil
}

// noticed is the share by which a cost must be above the published one to be called worse.
const noticed = 0.1

// printCosts prints the costs of a delivery beside the ones that were published last.
func printCosts(out io.Writer, figures []*figure, published []publishedRun) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "scenario\tfigure\tpublished\tnow\tunit\tchange\t")
	for _, f := range figures {
		if f.Name != daemonCPU && f.Name != redisCPU {
			continue
		}
		was, verdict := 0.0, "not published"
		for _, r := range published {
			for _, p := range r.Figures {
				if p.Scenario == f.Scenario && p.Name == f.Name {
					was = p.Median
				}
			}
		}
		switch {
		case was > 0 && f.Median > was*(1+noticed):
			verdict = worsened
		case was > 0:
			verdict = ""
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", f.Scenario, f.Name, number(was), number(f.Median), f.Unit, percent(was, f.Median), verdict)
	}
	_ = w.Flush()
}
