//go:build browser

package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/challenge"
)

// TestConsoleChartsZoom: dragging over a chart zooms it. The zoom survives a refresh of the
// page and can be undone.
func TestConsoleChartsZoom(t *testing.T) {
	w := newStory(t)
	w.failing, w.well = w.subscribe("Ledger", "/broken/ledger", "PAYMENT_PAID"), w.subscribe("Warehouse", "/well/x", "PAYMENT_PAID")
	w.invent(t)
	b := openBrowserAt(t, w.daemon.api)
	b.enter(w.daemon)
	b.eventually("the chart is drawn", func() bool {
		b.visit("/console/")
		return b.is(`document.querySelector("#chart-flow[data-drawn]")`)
	})
	const shown = `[...document.querySelectorAll("[data-unzoom]")].filter((e) => !e.hidden).map((e) => e.textContent).join()`
	if text := b.evaluate(shown); text != "" {
		t.Errorf("it is zoomed at first: %s", text)
	}
	drag := func(from, to float64) {
		t.Helper()
		at := func(part float64) (x, y float64) {
			_, err := fmt.Sscan(b.evaluate(fmt.Sprintf(
				`(() => { const e = document.querySelector("#chart-flow .u-over"); e.scrollIntoView({block: "center"}); const r = e.getBoundingClientRect(); return (r.left + r.width * %g) + " " + (r.top + r.height / 2); })()`, part)), &x, &y)
			if err != nil {
				t.Fatal(err)
			}
			return x, y
		}
		left := func(p *input.DispatchMouseEventParams) { p.Button, p.Buttons, p.ClickCount = "left", 1, 1 }
		x, y := at(from)
		end, _ := at(to)
		b.run(chromedp.MouseEvent("mouseMoved", x, y), chromedp.MouseEvent("mousePressed", x, y, left))
		for i := range 5 {
			b.run(chromedp.MouseEvent("mouseMoved", x+(end-x)*float64(i+1)/5, y, left))
		}
		b.run(chromedp.MouseEvent("mouseReleased", end, y, left))
	}
	drag(0.5, 0.75)
	b.eventually("it is zoomed", func() bool { return b.evaluate(shown) != "" })
	text := b.evaluate(shown)
	var hours [2]time.Time
	times := strings.Fields(strings.NewReplacer("–", " ", ",", " ").Replace(text))
	for i := range hours {
		at, err := time.Parse("15:04", times[i])
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		hours[i] = at
	}
	length := hours[1].Sub(hours[0])
	if length < 0 {
		length += 24 * time.Hour // over midnight
	}
	if length < 40*time.Minute || length > 50*time.Minute { // a quarter of three hours
		t.Errorf("%q shows %v", text, length)
	}
	b.run(chromedp.Evaluate[chromedp.Void](`window.before = document.getElementById("live"); undefined`))
	b.eventually("the page has loaded itself again", func() bool {
		return b.is(`document.getElementById("live") !== window.before && document.querySelector("#chart-flow[data-drawn]")`)
	})
	if again := b.evaluate(shown); again != text {
		t.Errorf("then it shows %q, not %q", again, text)
	}
	b.eventually("it goes back", func() bool {
		return b.is(`(document.querySelectorAll("[data-unzoom]:not([hidden])").forEach((e) => e.click()), ` + shown + ` === "")`)
	})
}

// TestConsoleSurvivesARestart: after a restart of the daemon an open live tail continues in
// the same session.
func TestConsoleSurvivesARestart(t *testing.T) {
	w := newStory(t)
	w.well = w.subscribe("Warehouse", "/well/x", "PAYMENT_PAID")
	b := openBrowserAt(t, w.daemon.api)
	b.enter(w.daemon)
	b.visit("/console/tail")
	b.says("Live")
	n := 0
	shows := func(what string) {
		t.Helper()
		b.eventually(what, func() bool {
			n++
			id := fmt.Sprintf("evt_%d", n)
			w.emit(id, "PAYMENT_PAID", nil)
			deadline := time.Now().Add(2 * time.Second)
			for !strings.Contains(b.text(), id) && time.Now().Before(deadline) {
				waitABit(t)
			}
			return strings.Contains(b.text(), id)
		})
	}
	shows("it shows an event")
	b.expect("ERR_") // the browser itself says that a connection ended
	w.daemon.stop(t)
	b.says("Reconnecting")
	w.daemon = w.home.start(t, "--listen", strings.TrimPrefix(w.daemon.api, "http://"))
	b.says("Live")
	shows("it shows an event of the new one")
	b.goes("Overview")
	b.says("Events pending")
}

// TestConsoleVerifiesACallbackURL: the console says that deliveries wait for a challenge, why the receiver failed it, and
// that it answered.
func TestConsoleVerifiesACallbackURL(t *testing.T) {
	w := newStory(t, "subscribers: {challenge: new}\n")
	var answers atomic.Bool
	receiver := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if text := challenge.Text(body); text != "" && answers.Load() {
			_, _ = io.WriteString(rw, text)
			return
		}
		w.came.Add(1)
		rw.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(receiver.Close)
	w.receiver = receiver.URL
	id := w.subscribe("Ledger of Nordwind GmbH", "/ledger", "PAYMENT_PAID")
	w.emit("evt_1", "PAYMENT_PAID", nil)
	b := openBrowserAt(t, w.daemon.api)
	b.enter(w.daemon)
	b.visit("/console/subscribers/" + id)
	b.says("Its callback URL is not verified")
	b.goes("Verify")
	b.says("The receiver is not verified")
	b.says("the answer does not repeat the challenge")
	answers.Store(true)
	b.goes("Verify")
	b.says("The callback URL is verified.")
	if text := b.text(); !strings.Contains(text, "verified, ") || strings.Contains(text, "not verified") {
		t.Errorf("the page says %q", text)
	}
	eventually(t, browserPatience, "the delivery has arrived", func() bool {
		_, _, text := w.daemon.do(t, "GET", "/api/v1/deliveries/evt_1."+id, "")
		return strings.Contains(text, `"status":"DELIVERED"`)
	})
}

// TestConsoleSessionsExpire: a session ends when it is idle too long, at the end of its
// lifetime, and when it is ended. Every page then shows that the session has ended.
func TestConsoleSessionsExpire(t *testing.T) {
	w := newStory(t)
	id := w.subscribe("Ledger", "/well/ledger", "PAYMENT_PAID")
	options, err := redis.ParseURL(w.home.redis)
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(options)
	defer client.Close()
	session := func() string {
		t.Helper()
		keys, err := client.Keys(t.Context(), "sh:{console}:session:*").Result()
		if err != nil || len(keys) != 1 {
			t.Fatalf("sessions: %v %v", keys, err)
		}
		return keys[0]
	}
	b := openBrowserAt(t, w.daemon.api)
	b.expect("401")
	out := func(tab *browser, where string) {
		t.Helper()
		tab.says("No session")
		if !tab.is(`document.querySelectorAll("h1").length === 1 && !document.querySelector("nav") && document.title.startsWith("No session") && document.querySelector("link[rel=stylesheet]").sheet`) {
			t.Errorf("%s: the page is not whole: %s", where, tab.text())
		}
	}
	other := func() *browser {
		t.Helper()
		ctx, cancel := chromedp.NewContext(b.ctx)
		t.Cleanup(cancel)
		tab := newTab(ctx, t, w.daemon.api)
		tab.expect("401")
		return tab
	}

	b.enter(w.daemon)
	b.visit("/console/")
	if err := client.PExpire(t.Context(), session(), 25*time.Minute).Err(); err != nil { // five minutes have passed
		t.Fatal(err)
	}
	b.run(chromedp.Evaluate[chromedp.Void](`window.before = document.getElementById("live"); undefined`))
	b.eventually("the page has loaded itself again", func() bool { return b.is(`document.getElementById("live") !== window.before`) })
	if left := client.PTTL(t.Context(), session()).Val(); left > 25*time.Minute {
		t.Errorf("the refresh counted as a use: %v are left", left)
	}
	links, forms := other(), other()
	links.visit("/console/event-types")
	forms.visit("/console/subscribers/" + id)
	if left := client.PTTL(t.Context(), session()).Val(); left < 29*time.Minute {
		t.Errorf("the visit did not count as a use: %v are left", left)
	}
	if err := client.Del(t.Context(), session()).Err(); err != nil { // as after 30 minutes
		t.Fatal(err)
	}
	links.goes("Events")
	out(links, "a link")
	forms.goes("Pause")
	out(forms, "a form")
	var sub struct{ Paused bool }
	if w.daemon.read(t, "/api/v1/subscribers/"+id, &sub); sub.Paused {
		t.Error("the form was taken")
	}
	out(b, "a page that loads itself again")

	b.enter(w.daemon)
	b.visit("/console/tail")
	b.says("Live")
	named := strings.TrimSpace(w.daemon.cli(t, "", "console-session", "list", "-o", "name").stdout)
	w.daemon.cli(t, "", "console-session", "end", named, "--yes").want(t, exitOK, "ended", "")
	out(b, "the live tail")

	b.visit(strings.TrimPrefix(w.daemon.consoleLink(t, "--lifetime", "1m"), w.daemon.api))
	opened := time.Now()
	b.goes("Open the console")
	b.says("Overview")
	b.eventually("it ends however it is used", func() bool {
		waitABit(t)
		return b.visit("/console/subscribers/"+id) == http.StatusUnauthorized
	})
	if lasted := time.Since(opened); lasted < 59*time.Second {
		t.Errorf("it lasted %v", lasted)
	}
	out(b, "after its lifetime")
}

// TestConsoleStoryOfManyDeadLetters: the receiver of one subscriber fails for long; its
// endpoint is red; the receiver is mended; all that match are counted, and then attempted
// again; all is well.
func TestConsoleStoryOfManyDeadLetters(t *testing.T) {
	w := newStory(t)
	w.failing = w.subscribe("Ledger", "/broken/ledger", "PAYMENT_PAID", "CARD_CREATION_REQUEST_ERROR")
	w.well = w.subscribe("Warehouse", "/well/x", "PAYMENT_PAID")
	const many = 60 // more than a page
	for i := range many {
		w.emit(fmt.Sprintf("evt_%d", i), "PAYMENT_PAID", nil)
	}
	w.emit("evt_other", "CARD_CREATION_REQUEST_ERROR", nil)
	for i := range many {
		w.awaitDead(fmt.Sprintf("evt_%d.%s", i, w.failing))
	}
	w.awaitDead("evt_other." + w.failing)
	w.came.Store(0)
	b := openBrowserAt(t, w.daemon.api)
	b.enter(w.daemon)
	b.eventually("the overview is red", func() bool {
		b.visit("/console/")
		return b.is(`document.querySelector("a[href*='state=failing']").closest("li.bad")`) && strings.Contains(b.text(), "Failing")
	})
	b.goes("subscribers failing")
	b.says("Ledger")
	if strings.Contains(b.text(), "Warehouse") {
		t.Error("one that is well is among the failing")
	}
	w.broken.Store(false)
	b.visit("/console/dead?event=PAYMENT_PAID")
	b.goes("Retry all matching deliveries")
	b.says(fmt.Sprintf("Attempt %d deliveries again", many))
	if n := w.came.Load(); n != 0 {
		t.Fatalf("counting has sent %d", n)
	}
	b.goes(fmt.Sprintf("Attempt %d deliveries again", many))
	b.says(fmt.Sprintf("of %d counted", many))
	b.says("Completed")
	b.eventually("all have come", func() bool { return w.came.Load() == many })
	b.eventually("the other one is left", func() bool {
		b.visit("/console/dead")
		return strings.Contains(b.text(), "evt_other") && !strings.Contains(b.text(), "PAYMENT_PAID")
	})
	b.open("tbody a")
	b.goes("Attempt now")
	b.eventually("the overview is well", func() bool {
		b.visit("/console/")
		return strings.Contains(b.text(), "Every subscriber is healthy")
	})
	b.run(chromedp.NavigateBack(), chromedp.NavigateBack())
	b.says("evt_other")
	if n := w.came.Load(); n != many+1 {
		t.Errorf("%d came: going back has sent something", n)
	}
	b.visit("/console/subscribers/" + w.failing)
	b.says("Latest changes: Recovered")
}
