package main

import (
	"fmt"

	"go.yaml.in/yaml/v4"
)

type configCmd struct {
	Check configCheckCmd `cmd:"" help:"Check the configuration, and list all errors." example:"spendhook config check spendhook.yml"`
	Print configPrintCmd `cmd:"" help:"Print the effective settings, without secrets." example:"spendhook config print --config spendhook.yml"`
}

type configCheckCmd struct {
	File string `arg:"" optional:"" env:"SPENDHOOK_CONFIG" help:"Configuration file (YAML)."`
}

// Run reads the file and the environment as serve would.
func (c *configCheckCmd) Run(term *stdio) error {
	if _, err := (configFlags{Config: c.File}).loadDaemon(nil); err != nil {
		return err
	}
	_, err := fmt.Fprintln(term.Out, "the configuration is good")
	return err
}

type configPrintCmd struct {
	configFlags
}

// Run prints what file, environment and defaults come to.
func (c *configPrintCmd) Run(term *stdio) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	text, err := yaml.Marshal(cfg)
	if err != nil {
		return err
	}
	_, err = term.Out.Write(text)
	return err
}
