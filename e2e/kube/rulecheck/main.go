// Holds a file of rules against Prometheus' own reader, as `promtool check rules` does.
package main

import (
	"fmt"
	"os"

	"github.com/prometheus/prometheus/model/rulefmt"
)

func main() {
	_, problems := rulefmt.ParseFile(os.Args[1], false)
	for _, problem := range problems {
		fmt.Println(problem)
	}
	if len(problems) > 0 {
		os.Exit(1)
	}
}
