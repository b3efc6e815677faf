#include "bench/cores/machine_info.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/support/temporary_dir.h"

namespace tandem::bench {
namespace {

namespace fs = std::filesystem;

void Put(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

TEST(MachineInfo, CountsSocketsNodesAndProcessorsThatAreOn) {
  const tests::TemporaryDir dir;
  const fs::path cpus = dir.path() / "sys/devices/system/cpu";
  Put(dir.path() / "proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\n");
  Put(dir.path() / "proc/self/status", "Name:\tx\nCpus_allowed:\tf\nCpus_allowed_list:\t0-2\n");
  Put(cpus / "cpu0/topology/physical_package_id", "0\n");
  Put(cpus / "cpu1/topology/physical_package_id", "0\n");
  Put(cpus / "cpu2/topology/physical_package_id", "1\n");
  fs::create_directories(cpus / "cpu3");  // off
  fs::create_directories(cpus / "cpufreq");
  Put(cpus / "cpu0/cache/index0/size", "48K\n");
  Put(cpus / "cpu0/cache/index3/size", "32768K\n");
  fs::create_directories(dir.path() / "sys/devices/system/node/node0");
  fs::create_directories(dir.path() / "sys/devices/system/node/node1");

  const MachineInfo info = ReadMachineInfo(dir.path());

  EXPECT_EQ(info.cpu, "Some CPU @ 2.0GHz");
  EXPECT_EQ(info.allowed_cpus, "0-2");
  EXPECT_EQ(info.logical_cpus, 3);
  EXPECT_EQ(info.sockets, 2);
  EXPECT_EQ(info.numa_nodes, 2);
  EXPECT_EQ(info.cache_bytes, 32 << 20);
}

TEST(MachineInfo, SaysUnknownWithoutProcAndSys) {
  const tests::TemporaryDir dir;

  const MachineInfo info = ReadMachineInfo(dir.path());

  EXPECT_EQ(info.cpu, "unknown");
  EXPECT_EQ(info.allowed_cpus, "unknown");
  EXPECT_EQ(info.sockets, 0);
  EXPECT_EQ(info.cache_bytes, 0);
}

}  // namespace
}  // namespace tandem::bench
