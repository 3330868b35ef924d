package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"spendhook/internal/terminal"
)

// printer returns a function that prints deliveries.
func printer(out io.Writer) func(received) {
	paint := painter(out)
	return func(r received) { printPretty(out, paint, r) }
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
