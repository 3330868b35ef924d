package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"text/tabwriter"
)

// report is the JSON that run writes and compare reads.
type report struct {
	Machine  machine   `json:"machine"`
	Settings settings  `json:"settings"`
	Figures  []*figure `json:"figures"`
}

func (r report) write(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o600)
}

func readReport(path string) (r report, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("%s: %w", path, err)
	}
	for _, f := range r.Figures {
		if len(f.Values) == 0 {
			return r, fmt.Errorf("%s: %s, %s has no values", path, f.Scenario, f.Name)
		}
	}
	return r, nil
}

func (r report) print(out io.Writer) {
	m := r.Machine
	fmt.Fprintf(out, "%s; %d × %s; Linux %s; load %s\n%s; %s; %s\n\n",
		m.Date, m.Cores, m.CPU, m.Kernel, m.Load, m.Spendhook, m.Go, m.Redis)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "scenario\tfigure\tmedian\tspread\tunit\tgoal\t")
	for _, f := range r.Figures {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s – %s\t%s\t%s\t%s\n", f.Scenario, f.Name, number(f.Median),
			number(f.lowest()), number(f.highest()), f.Unit, f.goalText(), verdict(f))
	}
	_ = w.Flush()
}

// number formats a value with three significant digits, and a whole number with all digits.
func number(v float64) string {
	if v >= 100 || v == float64(int64(v)) {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

func (q quantity) goalText() string {
	if q.Goal == nil {
		return ""
	}
	sign := map[direction]string{more: "≥ ", less: "≤ "}[q.Better]
	return sign + number(*q.Goal)
}

func verdict(f *figure) string {
	switch {
	case f.Goal == nil:
		return ""
	case f.met():
		return "reached"
	default:
		return "MISSED"
	}
}

// keepStats writes the command statistics of Redis next to the profiles.
func (b *bench) keepStats(ctx context.Context, s *stack, name string) error {
	if b.Profile == "" {
		return nil
	}
	stats, err := s.redis.ask(ctx, "INFO", "commandstats")
	return cmp.Or(err, os.WriteFile(filepath.Join(b.Profile, name+".commandstats"), []byte(stats), 0o600))
}
