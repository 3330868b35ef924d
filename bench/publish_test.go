package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The tables of docs/benchmarks.md are those of docs/benchmarks.json.
func TestPageIsGenerated(t *testing.T) {
	t.Parallel()
	const docs = "../docs"
	runs, err := readPublished(docs)
	if err != nil {
		t.Fatal(err)
	}
	list, page, err := documents(docs, runs)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []document{list, page} {
		if err := d.unchanged(); err != nil {
			t.Error(err)
		}
	}
}

// publisher is a repository with the documents of a bench.
type publisher struct {
	*testing.T
	dir string
}

func (p publisher) write(name, text string) {
	p.Helper()
	path := filepath.Join(p.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		p.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		p.Fatal(err)
	}
}

// commit changes a file and returns the commit.
func (p publisher) commit(name string) string {
	p.Helper()
	p.write(name, p.git("rev-list", "--all"))
	p.git("add", ".")
	p.git("-c", "user.name=bench", "-c", "user.email=bench@example.com", "commit", "-q", "-m", name)
	return strings.TrimSpace(p.git("rev-parse", "HEAD"))
}

func (p publisher) git(args ...string) string {
	p.Helper()
	out, err := git(p.Context(), p.dir, args...)
	if err != nil {
		p.Fatal(err)
	}
	return out
}

func (p publisher) bench(args ...string) (exit int, output string) {
	var out strings.Builder
	exit = run(context.WithoutCancel(p.Context()), append(args, "--docs", filepath.Join(p.dir, "docs")), console{out: &out, err: &out})
	return exit, out.String()
}

// row returns the cells of the page's only figure.
func (p publisher) row() []string {
	p.Helper()
	page := readFile(filepath.Join(p.dir, "docs/benchmarks.md"))
	_, row, _ := strings.Cut(page, "\n| `one`")
	row, _, _ = strings.Cut(row, "\n")
	if strings.Count(page, "`one`") != 1 || !strings.HasPrefix(page, "before\n") || !strings.HasSuffix(page, "after\n") {
		p.Fatalf("the page is\n%s", page)
	}
	return strings.Split(row, " | ")
}

// A run's figures replace the older ones. They are stale as soon as a commit changes the core.
func TestPublish(t *testing.T) {
	t.Parallel()
	p := publisher{t, t.TempDir()}
	p.git("init", "-q")
	p.write("docs/benchmarks.md", "before\n"+pageBegin+pageEnd+"after\n")
	p.write("docs/benchmarks.json", `[{"name": "A", "date": "2026-11-21", "machine": "", "settings": "", "stale": false,
		"figures": [{"scenario": "one", "name": "of bare", "unit": "", "better": "more", "goal": 2, "median": 3}]}]`)
	build := p.commit("dispatcher/lua/claim.lua")
	results := filepath.Join(p.dir, "bin/bench.json")
	measure := func(version string) {
		p.write("bin/bench.json", "")
		r := report{Machine: machine{Date: "2026-11-22 10:00 UTC", Go: "go1.26.8", Redis: "Redis server v=7.0.15 sha=0:0", Kernel: "6.18", Spendhook: fmt.Sprintf("spendhook %s (revision %s of 2026-11-22, go1.26.8)", version, build)}}
		r.Figures = []*figure{newFigure("one", "of bare", "1/s", more, []float64{1, 3, 1.5}).goal(2)}
		if err := r.write(results); err != nil {
			t.Fatal(err)
		}
	}
	if exit, out := p.bench("publish"); exit != 0 {
		t.Fatal(out)
	}
	if row := p.row(); row[3] != "3" || row[6] != "A, 2026-11-21, commit not recorded" || row[7] != "reached, **stale**" {
		t.Errorf("the old figure: %q", row)
	}
	measure("v1.0.0+dirty")
	if exit, _ := p.bench("publish", results); exit == 0 {
		t.Error("a build with changes was published")
	}
	measure("v1.0.0")
	for range 2 { // the second time changes nothing
		if exit, out := p.bench("publish", results); exit != 0 {
			t.Fatal(out)
		}
		row := p.row()
		if row[3] != "1.5 (1 – 3)" || row[6] != "2026-11-22 10:00 UTC, "+build[:8] || row[7] != "missed" {
			t.Errorf("the figure: %q", row)
		}
	}
	if page := readFile(filepath.Join(p.dir, "docs/benchmarks.md")); strings.Contains(page, "A, 2026") || !strings.Contains(page, "| go1.26.8, Redis 7.0.15, Linux 6.18 |") {
		t.Errorf("the runs:\n%s", page)
	}
	p.commit("dispatcher/claim_test.go")
	p.commit("events/README.md")
	p.commit("bench/main.go")
	if exit, out := p.bench("publish", "--check"); exit != 0 {
		t.Errorf("stale after changes of tests, documents and the bench: %s", out)
	}
	p.commit("subscribers/store.go")
	if exit, out := p.bench("publish", "--check"); exit == 0 || !strings.Contains(out, "1 figures are stale, of one") || !strings.Contains(out, "benchmarks.md would change") {
		t.Errorf("after a change of the core: %s", out)
	}
	if row := p.row(); row[7] != "missed" {
		t.Errorf("the check wrote %q", row)
	}
	if exit, out := p.bench("publish"); exit != 0 || p.row()[7] != "missed, **stale**" {
		t.Errorf("the mark: %q %s", p.row(), out)
	}
	if exit, out := p.bench("publish", "--check"); exit == 0 || strings.Contains(out, "would change") {
		t.Errorf("after the mark: %s", out)
	}
	build = strings.Repeat("0", 40)
	measure("v1.0.0")
	if exit, out := p.bench("publish", results); exit != 0 || p.row()[7] != "missed, **stale**" {
		t.Errorf("a commit that is gone: %q %s", p.row(), out)
	}
}
