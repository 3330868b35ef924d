package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/google/uuid"
)

// billOfMaterials lists the parts of the image in the format CycloneDX: the modules in the
// binary, and the other files. The same parts give the same bytes.
func billOfMaterials(binary []byte, r release) ([]byte, error) {
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return nil, fmt.Errorf("read the binary's modules: %w", err)
	}
	zones, err := os.ReadFile(zonesFile())
	if err != nil {
		return nil, err
	}
	components := []cyclonedx.Component{
		library("std", info.GoVersion, ""),
		{Type: cyclonedx.ComponentTypeData, Name: "Go time zones", Version: info.GoVersion, Hashes: sha256Of(zones)},
		{Type: cyclonedx.ComponentTypeData, Name: "Mozilla certificate authorities", Version: authoritiesVersion(), Hashes: sha256Of(authorities())},
	}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		components = append(components, library(module.Path, module.Version, module.Sum))
	}
	document := cyclonedx.NewBOM()
	document.SerialNumber = uuid.NewSHA1(uuid.NameSpaceURL, binary).URN()
	document.Metadata = &cyclonedx.Metadata{
		Timestamp: r.date.Format(time.RFC3339),
		Component: &cyclonedx.Component{
			BOMRef: "spendhook", Type: cyclonedx.ComponentTypeApplication, Name: "spendhook", Version: r.version, Hashes: sha256Of(binary),
			Licenses: &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "Apache-2.0"}}},
		},
	}
	document.Components = &components
	var text bytes.Buffer
	err = cyclonedx.NewBOMEncoder(&text, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(document)
	return text.Bytes(), err
}

func library(path, version, sum string) cyclonedx.Component {
	c := cyclonedx.Component{
		Type: cyclonedx.ComponentTypeLibrary, Name: path, Version: version,
		PackageURL: "pkg:golang/" + path + "@" + version,
	}
	c.BOMRef = c.PackageURL
	if sum != "" {
		c.Properties = &[]cyclonedx.Property{{Name: "go:sum", Value: sum}}
	}
	return c
}

func sha256Of(content []byte) *[]cyclonedx.Hash {
	sum := sha256.Sum256(content)
	return &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}}
}

// authoritiesVersion returns the version of the module that contains the CA certificates.
func authoritiesVersion() string {
	const unknown = "unknown"
	own, ok := debug.ReadBuildInfo()
	if !ok {
		return unknown
	}
	version := ""
	for _, module := range own.Deps {
		if strings.HasSuffix(module.Path, "x509roots/fallback") {
			version = module.Version
		}
	}
	return cmp.Or(version, unknown)
}
