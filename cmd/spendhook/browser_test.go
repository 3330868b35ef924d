package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// browser is a Chromium with an empty profile and one tab. Script errors and violations of
// the content security policy fail the test.
type browser struct {
	t    *testing.T
	ctx  context.Context //nolint:containedctx // a tab is a context to chromedp
	base string

	mu       sync.Mutex
	problems []string
	expected []string // parts of problems that are meant to be
}

// browserPatience is the time-out for a page on a busy machine.
const browserPatience = 5 * time.Minute

// openBrowserAt starts a browser for a daemon.
func openBrowserAt(t *testing.T, base string) *browser {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil && path == "" {
			path = found
		}
	}
	if path == "" {
		t.Fatal("no chromium: scripts/ensure chromium installs it")
	}
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("disable-gpu", true),
		chromedp.Flag("force-color-profile", "srgb"), chromedp.Flag("font-render-hinting", "none"), chromedp.WindowSize(1280, 800),
		chromedp.UserDataDir(t.TempDir()), chromedp.WSURLReadTimeout(browserPatience), chromedp.Env("TZ=Europe/Berlin"),
	)
	allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(func() {
		ending, done := context.WithTimeout(ctx, browserPatience)
		defer done()
		_ = chromedp.Cancel(ending) // it is killed below, if it does not end by itself
		cancel()
		stop() // which waits
	})
	return newTab(ctx, t, base)
}

// newTab starts the browser if it is the first.
func newTab(ctx context.Context, t *testing.T, base string) *browser {
	t.Helper()
	b := &browser{t: t, ctx: ctx, base: base}
	if err := chromedp.Listen(ctx, b.note); err != nil {
		t.Fatalf("start chromium: %v", err)
	}
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, p := range b.problems {
			if !slices.ContainsFunc(b.expected, func(part string) bool { return strings.Contains(p, part) }) {
				t.Errorf("the page says: %s", p)
			}
		}
	})
	return b
}

func (b *browser) note(event any) {
	text := ""
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		text = fmt.Sprint(e.ExceptionDetails.Text, " ", e.ExceptionDetails.URL)
		if e.ExceptionDetails.Exception != nil {
			text += " " + e.ExceptionDetails.Exception.Description
		}
	case *runtime.EventConsoleAPICalled:
		if e.Type == "error" || e.Type == "warning" {
			for _, a := range e.Args {
				text = fmt.Sprint(text, string(a.Value), " ", a.Description)
			}
		}
	case *cdplog.EventEntryAdded:
		if e.Entry.Level == "error" || e.Entry.Level == "warning" {
			text = fmt.Sprint(e.Entry.Text, " ", e.Entry.URL)
		}
	}
	if text != "" {
		b.mu.Lock()
		b.problems = append(b.problems, text)
		b.mu.Unlock()
	}
}

// expect allows problems of pages that contain this text.
func (b *browser) expect(part string) {
	b.mu.Lock()
	b.expected = append(b.expected, part)
	b.mu.Unlock()
}

// within returns a context with the time-out of one step in a tab.
func (b *browser) within() (context.Context, context.CancelFunc) {
	return context.WithTimeout(b.ctx, browserPatience)
}

// run runs actions in the tab.
func (b *browser) run(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := b.within()
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatalf("%v; the page is %s:\n%s", err, b.address(), b.text())
	}
}

func (b *browser) address() string {
	ctx, cancel := b.within()
	defer cancel()
	at, _ := chromedp.Run(ctx, chromedp.Location()) // it is for a message
	return at
}

// text returns the text of the page.
func (b *browser) text() string {
	ctx, cancel := b.within()
	defer cancel()
	text, _ := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body.innerText`)) // between two pages there is none
	return text
}

// visit loads a page of the console and returns its status.
func (b *browser) visit(path string) int64 {
	b.t.Helper()
	ctx, cancel := b.within()
	defer cancel()
	answer, err := chromedp.RunResponse(ctx, chromedp.Navigate(b.base+path))
	if err != nil {
		b.t.Fatalf("%s: %v", path, err)
	}
	b.ready()
	return answer.Status
}

// ready waits until the page is there with its scripts.
func (b *browser) ready() {
	b.t.Helper()
	b.eventually("the page is loaded", func() bool { return b.is(`document.readyState === "complete"`) })
}

// is reports whether a script returns true. While a page loads, it reports false.
func (b *browser) is(script string) bool {
	ctx, cancel := b.within()
	defer cancel()
	yes, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`!!(`+script+`)`))
	return err == nil && yes
}

// eventually waits until a condition holds.
func (b *browser) eventually(what string, so func() bool) {
	b.t.Helper()
	eventually(b.t, browserPatience, what, so)
}

// says waits until the page shows a text.
func (b *browser) says(text string) {
	b.t.Helper()
	deadline := time.Now().Add(browserPatience)
	for !strings.Contains(b.text(), text) {
		if time.Now().After(deadline) {
			b.t.Fatalf("the page %s does not say %q, but:\n%s", b.address(), text, b.text())
		}
		waitABit(b.t)
	}
}

// waitABit gives a page time.
func waitABit(t *testing.T) {
	t.Helper()
	select {
	case <-time.After(50 * time.Millisecond):
	case <-t.Context().Done():
	}
}

// press clicks the first button or link with a text, and waits for the page that
// follows.
func (b *browser) press(text string) {
	b.t.Helper()
	mark := fmt.Sprintf(`(() => { window.pressed = true;
		const found = [...document.querySelectorAll("button, a, summary")].find((e) => e.innerText.trim().startsWith(%q) && !e.disabled && e.offsetParent);
		if (!found) return false; found.click(); return true; })()`, text)
	b.eventually("there is "+text, func() bool { return b.is(mark) })
}

// open follows the first link that a selector finds.
func (b *browser) open(selector string) {
	b.t.Helper()
	click := fmt.Sprintf(`(() => { window.pressed = true; const found = document.querySelector(%q); if (!found) return false; found.click(); return true; })()`, selector)
	b.eventually("there is "+selector, func() bool { return b.is(click) })
	b.arrives("the page after " + selector)
}

// arrives waits for another page.
func (b *browser) arrives(what string) {
	b.t.Helper()
	b.eventually(what, func() bool { return b.is(`!window.pressed && document.readyState === "complete"`) })
}

// goes clicks a button or link with this text, and waits for the next page.
func (b *browser) goes(text string) {
	b.t.Helper()
	b.press(text)
	b.arrives("the page after " + text)
}

// enter opens a session by the link that the daemon's command prints.
func (b *browser) enter(r *running) {
	b.t.Helper()
	b.visit(strings.TrimPrefix(r.consoleLink(b.t), b.base))
	b.goes("Open the console")
	b.says("Overview")
}

// consoleLink returns the link that the command prints.
func (r *running) consoleLink(t *testing.T, flags ...string) string {
	t.Helper()
	printed := r.cli(t, "", "console", flags...)
	printed.want(t, exitOK, "/console/open?link=", "")
	link := strings.TrimSpace(printed.stdout)
	if _, err := url.Parse(link); err != nil || !strings.HasPrefix(link, r.api+"/console/open?link=") {
		t.Fatalf("not a link: %q", link)
	}
	return link
}

func writeFile(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
}
