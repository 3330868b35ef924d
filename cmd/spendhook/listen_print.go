package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"spendhook/internal/terminal"
)

// printer returns how deliveries are shown: for people, or a JSON object a line.
func printer(out io.Writer, asJSON bool) func(received) {
	if asJSON {
		return func(r received) { printJSON(out, r) }
	}
	paint := painter(out)
	return func(r received) { printPretty(out, paint, r) }
}

func printJSON(out io.Writer, r received) {
	body := jsontext.Value(r.Body)
	if !body.IsValid() {
		body, _ = json.Marshal(string(r.Body), jsontext.AllowInvalidUTF8(true)) // a string always encodes
	}
	line, err := json.Marshal(struct {
		At        time.Time      `json:"at"`
		ID        string         `json:"id"`
		Signature string         `json:"signature"`
		Answered  int            `json:"answered"`
		Body      jsontext.Value `json:"body"`
	}{r.At, r.ID, proof(r.Verified), r.Answered, body})
	if err == nil {
		fmt.Fprintln(out, terminal.Escape(string(line), ""))
	}
}

func printPretty(out io.Writer, paint paint, r received) {
	color := green
	if r.Answered/100 != 2 {
		color = red
	}
	fmt.Fprintf(out, "%s  %s  %s  %s  %s\n", r.At.Format("15:04:05.000"),
		paint(color, strconv.Itoa(r.Answered)), paint(bold, terminal.Escape(typeOf(r.Body), "")), terminal.Escape(r.ID, ""), paint(color, proof(r.Verified)))
	body, keep := jsontext.Value(r.Body), "\n" // which is the indentation's alone
	if err := body.Indent(jsontext.WithIndentPrefix("    "), jsontext.WithIndent("  ")); err != nil {
		body, keep = r.Body, ""
	}
	fmt.Fprintf(out, "    %s\n", terminal.Escape(string(body), keep))
}

func proof(verified error) string {
	switch {
	case verified == nil:
		return "verified"
	case errors.Is(verified, errNoSecret):
		return "not checked"
	}
	return "REFUSED: " + verified.Error()
}

// SGR codes of the few styles in use.
const (
	bold  = "1"
	dim   = "2"
	red   = "31"
	green = "32"
	cyan  = "36"
)

// paint puts text into a style, or leaves it alone.
type paint func(style, text string) string

// painter paints on a terminal only.
func painter(out io.Writer) paint {
	if !terminal.Colors(out) {
		return func(_, text string) string { return text }
	}
	return func(style, text string) string { return "\x1b[" + style + "m" + text + "\x1b[0m" }
}
