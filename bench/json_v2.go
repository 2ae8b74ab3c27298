// Parses a payload by Telegraf's json_v2 and writes its metrics as line protocol, over and over, each time a
// line comes on standard input: the line has the seconds to go on. Answers fields and CPU seconds.
package main

import (
	"bufio"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/influxdata/telegraf/plugins/parsers/json_v2"
	"github.com/influxdata/telegraf/plugins/serializers/influx"
)


func spent() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

func main() {
	payload, err := os.ReadFile(os.Args[1])
	if err != nil {
		panic(err)
	}
	parser := &json_v2.Parser{
		DefaultMetricName: "lora",
		Configs: []json_v2.Config{{
			TimestampPath:   "time",
			TimestampFormat: "rfc3339",
			Tags:            []json_v2.DataSet{{Path: "deviceInfo.devEui", Rename: "device"}},
			JSONObjects: []json_v2.Object{
				{Path: "object"},
				{Path: "rxInfo", Tags: []string{"gatewayId"}, IncludedKeys: []string{"gatewayId", "rssi", "snr"}},
			},
		}},
	}
	if err := parser.Init(); err != nil {
		panic(err)
	}
	serializer := &influx.Serializer{}
	if err := serializer.Init(); err != nil {
		panic(err)
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var seconds float64
		fmt.Sscan(lines.Text(), &seconds)
		fields, began := 0, spent()
		for end := time.Now().Add(time.Duration(seconds * 1e9)); time.Now().Before(end); {
			for range 100 {
				parsed, err := parser.Parse(payload)
				if err != nil {
					panic(err)
				}
				if _, err := serializer.SerializeBatch(parsed); err != nil {
					panic(err)
				}
				for _, metric := range parsed {
					fields += len(metric.FieldList())
				}
			}
		}
		fmt.Println(fields, spent()-began)
	}
}
