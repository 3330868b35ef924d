package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// publishedRun is a run whose figures docs/benchmarks.md shows.
type publishedRun struct {
	Name     string            `json:"name,omitempty"` // of the older runs, to which the text of the page refers
	Date     string            `json:"date"`
	Commit   string            `json:"commit,omitempty"` // of the build; empty: not recorded
	Build    string            `json:"build,omitempty"`
	Machine  string            `json:"machine"`
	Settings string            `json:"settings"`
	Stale    bool              `json:"stale"` // when the page was written, the core had changed since Commit
	Figures  []publishedFigure `json:"figures"`
}

// publishedFigure is a figure of a publishedRun.
type publishedFigure struct {
	quantity
	Median  float64  `json:"median"`
	Lowest  *float64 `json:"lowest,omitempty"` // nil: not recorded
	Highest *float64 `json:"highest,omitempty"`
	Rounds  int      `json:"rounds,omitempty"` // 0: not recorded
	Missed  bool     `json:"missed,omitempty"` // the goal
	Note    string   `json:"note,omitempty"`
}

type publishCmd struct {
	Results string `arg:"" optional:"" help:"JSON file of a run whose figures replace the older ones. Default: only mark what is stale, and write the tables."`
	Check   bool   `help:"Write nothing. Fail if a figure is stale, or if the page would change."`
	Docs    string `default:"docs" help:"Directory of benchmarks.json and benchmarks.md."`
}

// Run merges the results into benchmarks.json, marks the runs that are stale, and writes the tables
// of benchmarks.md.
func (c *publishCmd) Run(ctx context.Context) error {
	runs, err := c.runs(ctx)
	if err != nil {
		return err
	}
	list, page, err := documents(c.Docs, runs)
	if err != nil {
		return err
	}
	if c.Check {
		return errors.Join(fresh(runs), list.unchanged(), page.unchanged())
	}
	return errors.Join(list.write(), page.write())
}

// runs returns the published runs with the results, each marked if it is stale now.
func (c *publishCmd) runs(ctx context.Context) ([]publishedRun, error) {
	runs, err := readPublished(c.Docs)
	if err != nil {
		return nil, err
	}
	if c.Results != "" {
		r, err := readReport(c.Results)
		if err != nil {
			return nil, err
		}
		add, err := r.publish()
		if err != nil {
			return nil, err
		}
		runs = merge(runs, add)
	}
	for i := range runs {
		if runs[i].Stale, err = coreChanged(ctx, c.Docs, runs[i].Commit); err != nil {
			return nil, err
		}
	}
	return runs, nil
}

// document is a file of the documents as it should be.
type document struct {
	path string
	text []byte
}

// documents returns benchmarks.json and benchmarks.md with these runs.
func documents(dir string, runs []publishedRun) (list, page document, err error) {
	list.path, page.path = filepath.Join(dir, listFile), filepath.Join(dir, "benchmarks.md")
	if list.text, err = json.MarshalIndent(runs, "", "  "); err != nil {
		return list, page, err
	}
	list.text = append(list.text, '\n')
	if page.text, err = os.ReadFile(page.path); err == nil {
		page.text, err = fillPage(page.text, runs)
	}
	return list, page, err
}

func (d document) write() error { return os.WriteFile(d.path, d.text, 0o644) } //nolint:gosec // not secret

func (d document) unchanged() error {
	text, err := os.ReadFile(d.path)
	if err == nil && !bytes.Equal(text, d.text) {
		err = fmt.Errorf("%s would change: run go run ./bench publish", d.path)
	}
	return err
}

const listFile = "benchmarks.json"

func readPublished(dir string) (runs []publishedRun, err error) {
	text, err := os.ReadFile(filepath.Join(dir, listFile))
	if err == nil {
		err = json.Unmarshal(text, &runs)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", listFile, err)
	}
	return runs, nil
}

// fresh returns an error that lists the scenarios with stale figures.
func fresh(runs []publishedRun) error {
	var stale []string
	for _, r := range runs {
		for _, f := range r.Figures {
			if r.Stale {
				stale = append(stale, f.Scenario)
			}
		}
	}
	if len(stale) == 0 {
		return nil
	}
	slices.Sort(stale)
	return fmt.Errorf("%d figures are stale, of %s: measure them again (make bench)", len(stale), strings.Join(slices.Compact(stale), ", "))
}

// publish returns the figures of a run. It refuses a build without a commit of its own.
func (r report) publish() (p publishedRun, err error) {
	m, s := r.Machine, r.Settings
	var version string
	_, err = fmt.Sscanf(m.Spendhook, "spendhook %s (revision %s", &version, &p.Commit)
	if err != nil || p.Commit == "unknown" || strings.HasSuffix(version, "+dirty") {
		return p, fmt.Errorf("the build has no commit, or changes that are not committed: %q", m.Spendhook)
	}
	_, redis, _ := strings.Cut(m.Redis, "v=")
	redis, _, _ = strings.Cut(redis, " ")
	p.Date, p.Build = m.Date, fmt.Sprintf("%s, Redis %s, Linux %s", m.Go, redis, m.Kernel)
	p.Machine = fmt.Sprintf("%d × %s", m.Cores, m.CPU)
	p.Settings = fmt.Sprintf("load for %v, paced rounds of %v, floods of %v watched for %v more, `--scale %v`", s.LoadFor, s.PacedFor, s.FloodFor, s.DrainFor, s.Scale)
	for _, f := range r.Figures {
		lowest, highest := f.lowest(), f.highest()
		p.Figures = append(p.Figures, publishedFigure{
			quantity: f.quantity, Median: f.Median, Lowest: &lowest, Highest: &highest, Rounds: len(f.Values), Missed: !f.met(),
		})
	}
	return p, nil
}

// merge adds a run. Its figures replace those of the same scenario and name. A run without figures goes.
func merge(runs []publishedRun, add publishedRun) []publishedRun {
	measured := make(map[[2]string]bool, len(add.Figures))
	for _, f := range add.Figures {
		measured[[2]string{f.Scenario, f.Name}] = true
	}
	var list []publishedRun
	for _, r := range runs {
		r.Figures = slices.DeleteFunc(r.Figures, func(f publishedFigure) bool { return measured[[2]string{f.Scenario, f.Name}] })
		if len(r.Figures) > 0 {
			list = append(list, r)
		}
	}
	return append(list, add)
}

// coreChanged reports whether the core differs from that of a commit by another commit. It does, too,
// when the commit is not recorded, or not in the repository of dir.
func coreChanged(ctx context.Context, dir, commit string) (bool, error) {
	if commit == "" {
		return true, nil
	}
	var failed *exec.ExitError
	_, err := git(ctx, dir, "rev-parse", "--verify", "--quiet", commit+"^{commit}")
	if errors.As(err, &failed) && failed.ExitCode() == 1 {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	changes, err := git(ctx, dir, "log", "-1", "--format=%h", commit+"...HEAD", "--",
		":/dispatcher", ":/events", ":/subscribers", ":(top,exclude)*_test.go", ":(top,exclude)*.md")
	return changes != "", err
}

func git(ctx context.Context, dir string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...).Output() //nolint:gosec // our own arguments
	if err != nil {
		err = fmt.Errorf("git %s: %w", args[0], err)
	}
	return string(out), err
}
