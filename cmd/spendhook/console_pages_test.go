//go:build browser

package main

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// paths returns the pages of the console, for a company with data of every kind.
func (w *story) paths() []string {
	return []string{
		"/console/", "/console/?span=7d", "/console/subscribers", "/console/subscribers/" + w.failing, "/console/subscribers/" + w.failing + "/edit", "/console/subscribers/new",
		"/console/events/new?event=PAYMENT_PAID",
		"/console/events", "/console/events/" + developerCompany.String() + "/" + w.event + "?payload=true", "/console/deliveries?status=DEAD", "/console/dead",
		"/console/deliveries/" + w.event + "." + w.failing, "/console/tail", "/console/jobs", "/console/access", "/console/audit", "/console/event-types", "/console/quarantine",
		"/console/no-such-page",
	}
}

// TestConsoleIsAccessible: axe finds nothing serious on any page, light or dark, and none
// is wider than its window.
func TestConsoleIsAccessible(t *testing.T) {
	w := newStory(t)
	w.fill()
	file, err := os.Open("testdata/axe.min.js.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	plain, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	axe, err := io.ReadAll(plain)
	if err != nil {
		t.Fatal(err)
	}
	b := openBrowserAt(t, w.daemon.api)
	b.enter(w.daemon)
	b.expect("404")
	b.eventually("the charts have something", func() bool {
		b.visit("/console/")
		return b.is(`document.querySelector("figure.chart[data-drawn]")`)
	})
	check := func(path string) {
		t.Helper()
		for _, scheme := range []string{"light", "dark"} {
			b.prefers(scheme)
			b.run(chromedp.EmulateViewport(1440, 900))
			b.visit(path)
			b.fits(path, 1440)
			b.evaluate(string(axe) + `; axe.run(document, {resultTypes: ["violations"]}).then((r) => {
				window.found = r.violations.filter((v) => v.impact === "serious" || v.impact === "critical")
					.map((v) => v.id + ": " + v.nodes.map((n) => n.html.slice(0, 200) + " " + n.failureSummary).join(" | ")).join("\n"); }); ""`)
			b.eventually("axe is done", func() bool { return b.is(`window.found !== undefined`) })
			if found := b.evaluate(`window.found`); found != "" {
				t.Errorf("%s, %s:\n%s", path, scheme, found)
			}
		}
		b.run(chromedp.EmulateViewport(360, 780))
		b.visit(path)
		b.fits(path, 360)
		if wide := b.evaluate(`[...document.querySelectorAll(":not(details) > .wide")].filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.outerHTML.slice(0, 200)).join(" | ")`); wide != "" {
			b.t.Errorf("%s: a table is wider than a phone: %s", path, wide)
		}
	}
	for _, path := range w.paths() {
		check(path)
	}
	named := command(t, "", "company", "name", developerCompany.String(), "Nordwind GmbH", "--url", w.daemon.api, "--token-file", secretFile(t, w.mint("")), "--yes")
	named.want(t, exitOK, "Nordwind", "")
	w.enterAll(b)
	for _, path := range []string{"/console/", "/console/companies", "/console/access", "/console/event-types?name=PAYMENT_PAID", "/console/system", "/console/subscribers", "/console/audit", "/console/quarantine", "/console/jobs"} {
		check(path)
	}
}

// enterAll opens a session of all companies.
func (w *story) enterAll(b *browser) {
	b.t.Helper()
	link := command(b.t, "", "console", "--url", w.daemon.api, "--token-file", secretFile(b.t, w.mint("")), "--all-companies")
	link.want(b.t, exitOK, "/console/open?link=", "")
	b.visit(strings.TrimPrefix(strings.TrimSpace(link.stdout), w.daemon.api))
	b.goes("Open the console")
}

func (b *browser) prefers(scheme string) {
	b.t.Helper()
	ctx, cancel := b.within()
	defer cancel()
	if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}},
	}); err != nil {
		b.t.Fatal(err)
	}
}

// fits fails when a page is wider than the window.
func (b *browser) fits(path string, width int) {
	b.t.Helper()
	if !b.is(`document.documentElement.scrollWidth <= window.innerWidth`) {
		wide := b.evaluate(`[...document.querySelectorAll("main *")].filter((e) => e.getBoundingClientRect().right > window.innerWidth + 1 && !e.closest(".wide, nav")).slice(0, 3).map((e) => e.outerHTML.slice(0, 120)).join(" | ")`)
		b.t.Errorf("%s is wider than %d: %s", path, width, wide)
	}
}

func (b *browser) evaluate(script string) string {
	b.t.Helper()
	ctx, cancel := b.within()
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](script))
	if err != nil {
		b.t.Fatalf("%s: %v", script, err)
	}
	return text
}

// TestConsoleExecutesNothingFromOutside: every page shows names, payloads and answers of
// receivers as text.
func TestConsoleExecutesNothingFromOutside(t *testing.T) {
	const hostile = `"'><script>window.pwned=1</script><img src=x onerror="window.pwned=1">{{7*7}}</textarea><svg onload=window.pwned=1>`
	w := newStory(t)
	receiver := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "text/html")
		rw.Header().Set("X-Hostile", hostile)
		rw.WriteHeader(http.StatusInternalServerError)
		_, _ = rw.Write([]byte(hostile))
	}))
	t.Cleanup(receiver.Close)
	w.receiver = receiver.URL
	w.failing = w.subscribe(hostile, "/x?"+url.QueryEscape(hostile)+"='onload=window.pwned=1", "PAYMENT_PAID")
	b := openBrowserAt(t, w.daemon.api)
	b.enter(w.daemon)
	b.expect("404")
	harmless := func(where string) {
		t.Helper()
		if b.is(`window.pwned || document.querySelector("img[src=x], svg[onload], script:not([src])")`) {
			t.Errorf("%s runs what comes from outside", where)
		}
	}
	b.visit("/console/tail")
	b.says("Live")
	for i := 0; !strings.Contains(b.text(), "the receiver failed"); i++ {
		w.event = fmt.Sprintf("evt_%d", i)
		w.emit(w.event, "PAYMENT_PAID", map[string]any{"merchant": hostile, hostile: 1})
		waitABit(t)
	}
	b.says("<script>window.pwned=1</script>")
	harmless("the live tail")
	w.awaitDead(w.event + "." + w.failing)
	for _, path := range append(w.paths(), "/console/subscribers?name="+url.QueryEscape(hostile), "/console/audit?actor="+url.QueryEscape(hostile), "/console/events?event="+url.QueryEscape(hostile)) {
		b.visit(path)
		harmless(path)
	}
	b.visit("/console/subscribers/" + w.failing)
	b.goes("Send a test delivery")
	b.says("window.pwned=1")
	harmless("the test delivery")
}

// TestConsoleInTwoTabs: a change in one tab is not overwritten from another tab. Back and
// reload show the current state.
func TestConsoleInTwoTabs(t *testing.T) {
	w := newStory(t)
	id := w.subscribe("First name", "/well/x", "PAYMENT_PAID")
	b := openBrowserAt(t, w.daemon.api)
	b.enter(w.daemon)
	ctx, cancel := chromedp.NewContext(b.ctx)
	t.Cleanup(cancel)
	other := newTab(ctx, t, w.daemon.api)
	path := "/console/subscribers/" + id
	b.visit(path + "/edit")
	other.visit(path + "/edit")
	rename := func(tab *browser, name string) {
		t.Helper()
		tab.eventually("the name is entered", func() bool {
			return tab.is(fmt.Sprintf(`(document.querySelector("#f-name").value = %q, true)`, name))
		})
		tab.goes("Save")
	}
	rename(other, "Second name")
	other.says("The subscriber was changed")
	b.expect("412")
	rename(b, "Third name")
	b.says("The subscriber was changed after you opened the form")
	b.visit(path)
	b.says("Second name")
	b.goes("Edit")
	b.run(chromedp.NavigateBack())
	b.says("Second name")
	b.run(chromedp.Reload())
	b.says("Second name")
	other.goes("Sign out")
	other.says("Signed out")
	b.expect("401")
	if status := b.visit("/console/"); status != http.StatusUnauthorized {
		t.Errorf("in the other tab: %d", status)
	}
	b.run(chromedp.NavigateBack())
	b.says("No session")
}

// TestConsoleTailReconnects: the live tail reconnects after a broken connection, and can be
// paused and cleared.
func TestConsoleTailReconnects(t *testing.T) {
	w := newStory(t)
	w.well = w.subscribe("Warehouse", "/well/x", "PAYMENT_PAID")
	to, err := url.Parse(w.daemon.api)
	if err != nil {
		t.Fatal(err)
	}
	between := httptest.NewServer(httputil.NewSingleHostReverseProxy(to))
	t.Cleanup(between.Close)
	b := openBrowserAt(t, between.URL)
	b.visit(strings.TrimPrefix(w.daemon.consoleLink(t), w.daemon.api))
	b.goes("Open the console")
	b.visit("/console/tail")
	b.says("Live")
	n := 0
	until := func(what string, so func() bool) {
		t.Helper()
		b.eventually(what, func() bool {
			n++
			w.emit(fmt.Sprintf("evt_%d", n), "PAYMENT_PAID", nil)
			return so()
		})
	}
	rows := func() string { return b.evaluate(`String(document.querySelectorAll("#tail tbody tr").length)`) }
	until("it shows something", func() bool { return rows() != "0" })
	b.press("Pause")
	b.says("Paused")
	until("it counts what comes", func() bool { return strings.Contains(b.text(), "came while paused") })
	b.press("Resume")
	b.expect("ERR_")
	between.CloseClientConnections()
	b.says("Reconnecting")
	b.press("Clear")
	until("it shows something again", func() bool { return rows() != "0" && strings.Contains(b.text(), "Live") })
}
