package main

import "testing"

func TestInfoNumber(t *testing.T) {
	t.Parallel()
	const info = "# Memory\r\nused_memory_human:1.00M\r\nused_memory:1048576\r\n"
	if got, err := infoNumber(info, "used_memory"); err != nil || got != 1048576 {
		t.Errorf("infoNumber = %d, %v", got, err)
	}
	if _, err := infoNumber(info, "used"); err == nil {
		t.Error("half a name was found")
	}
}

func TestMetric(t *testing.T) {
	t.Parallel()
	const text = "# HELP x y\nx{status=\"DEAD\"} 3\nx{status=\"DELIVERED\"} 1.2e+06\n"
	if got, err := metric(text, `x{status="DELIVERED"}`); err != nil || got != 1_200_000 {
		t.Errorf("metric = %d, %v", got, err)
	}
	if _, err := metric(text, "x"); err == nil {
		t.Error("a series without its labels was found")
	}
}

func TestField(t *testing.T) {
	t.Parallel()
	const text = "processor\t: 0\nmodel name\t: A: B\n"
	if got := field(text, "model name"); got != "A: B" {
		t.Errorf("field = %q", got)
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	if all, err := choose(nil); err != nil || len(all) != len(scenarios()) {
		t.Errorf("choose(nil) = %d scenarios, %v", len(all), err)
	}
	two, err := choose([]string{"batch", "one"})
	if err != nil || len(two) != 2 || two[0].name != "batch" || two[1].name != "one" {
		t.Errorf("choose(batch, one) = %v, %v", two, err)
	}
	if _, err := choose([]string{"none"}); err == nil {
		t.Error("an unknown name was accepted")
	}
}
