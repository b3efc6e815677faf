#include "training/dist/mesh.h"

#include <gtest/gtest.h>

#include <map>

#include "engine/base/attempt.h"
#include "training/dist/launch.h"
#include "training/dist/mpi_transport.h"

namespace tandem::training {
namespace {

std::string FaultIn(const std::string& mesh, int64_t world) {
  const auto error = ErrorOf([&] { ResolveMesh(ParseMesh(mesh), world); });
  return error ? error->what() : "";
}

TEST(MeshTest, DataTakesTheRest) {
  EXPECT_EQ(ResolveMesh({}, 6).data, 6);
  EXPECT_EQ(ResolveMesh(ParseMesh("-1"), 4).data, 4);
  EXPECT_EQ(ResolveMesh(ParseMesh("data=4,fsdp=-1"), 4).data, 4);
  EXPECT_EQ(ResolveMesh(ParseMesh("[2, 1, 1]"), 2).data, 2);
  EXPECT_EQ(ResolveMesh(ParseMesh("batch=-1, model=1"), 3).data, 3);
  EXPECT_EQ(ResolveMesh(ParseMesh("fsdp=2"), 4).data, 2);
  EXPECT_EQ(ResolveMesh(ParseMesh("fsdp=-1,data=1"), 4).fsdp, 4);
  // MaxText's default configuration on one rank.
  EXPECT_EQ(ResolveMesh(ParseMesh("data=1,fsdp=-1,tensor=1"), 1).ranks(), 1);
}

TEST(MeshTest, HostsAndRanksWithinAHostMultiply) {
  MeshRequest request;
  request.data.dcn = 2;
  request.data.ici = -1;
  EXPECT_EQ(ResolveMesh(request, 8).data, 8);
  request.data.ici = 3;
  EXPECT_EQ(ResolveMesh(request, 6).data, 6);
}

TEST(MeshTest, RefusesWhatDoesNotGiveTheNumberOfRanks) {
  EXPECT_NE(FaultIn("data=3", 4).find("= 3 ranks, but 4 run"), std::string::npos)
      << FaultIn("data=3", 4);
  EXPECT_NE(FaultIn("data=-1,fsdp=-1", 4).find("only one axis"), std::string::npos);
  EXPECT_NE(FaultIn("data=0", 1).find("must be a number of ranks"), std::string::npos);
  EXPECT_NE(FaultIn("data=1048577", 1).find("must be a number of ranks"), std::string::npos);
  EXPECT_NE(FaultIn("expert=2", 2).find("unknown axis \"expert\""), std::string::npos);
  EXPECT_NE(FaultIn("1,1,1,1", 1).find("more than three"), std::string::npos);
}

TEST(MeshTest, TensorIsTheInnermostAxis) {
  const Mesh mesh = ResolveMesh(ParseMesh("fsdp=2,tensor=2"), 8);
  EXPECT_EQ(mesh.data, 2);
  EXPECT_EQ(mesh.fsdp, 2);
  EXPECT_EQ(mesh.tensor, 2);
  EXPECT_EQ(ResolveMesh(ParseMesh("tensor=-1,data=2"), 8).tensor, 4);
}

TEST(MeshTest, RanksOfTheTensorAxisMayDivideTheRows) {
  const Mesh mesh = ResolveMesh(ParseMesh("data=2,tensor_sequence=-1"), 8);
  EXPECT_EQ(mesh.data, 2);
  EXPECT_EQ(mesh.tensor, 4);
  EXPECT_TRUE(mesh.divides_rows);
  EXPECT_FALSE(ResolveMesh(ParseMesh("tensor=2,tensor_sequence=1"), 2).divides_rows);
  EXPECT_NE(FaultIn("tensor=2,tensor_sequence=2", 4).find("set one of ici_tensor_parallelism"),
            std::string::npos);
}

std::optional<LaunchedRank> Find(const std::map<std::string, std::string>& variables) {
  return FindLaunchedRank([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(LaunchTest, FindsTheRankOfMpirunAndSrun) {
  EXPECT_FALSE(Find({}));
  EXPECT_FALSE(Find({{"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}}));
  const auto ompi = Find({{"OMPI_COMM_WORLD_SIZE", "4"},
                          {"OMPI_COMM_WORLD_RANK", "3"},
                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  ASSERT_TRUE(ompi);
  EXPECT_EQ(ompi->rank, 3);
  EXPECT_EQ(ompi->size, 4);
  EXPECT_EQ(ompi->local_size, 2);
  // A batch script has these too, but runs once.
  EXPECT_FALSE(Find({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}));
  const auto slurm = Find({{"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_PROCID", "5"}});
  ASSERT_TRUE(slurm);
  EXPECT_EQ(slurm->rank, 5);
  EXPECT_EQ(Find({{"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_PROCID", "5"}, {"PMIX_RANK", "6"}})->rank,
            6);
}

TEST(LaunchTest, RefusesVariablesThatMakeNoSense) {
  for (const char* size : {"0", "x", "2x", "-2", "99999999999"}) {
    EXPECT_TRUE(ErrorOf([&] { Find({{"OMPI_COMM_WORLD_SIZE", size}}); })) << size;
  }
  EXPECT_TRUE(ErrorOf([] { Find({{"OMPI_COMM_WORLD_SIZE", "2"}}); }));
  EXPECT_TRUE(ErrorOf([] {
    Find({{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "2"}});
  }));
}

TEST(MpiTransportTest, SaysWhatToInstallWithoutThePlugin) {
  const auto error = ErrorOf([] { OpenMpiTransport({"/nowhere/tandem_mpi.so"}); });
  ASSERT_TRUE(error);
  const std::string text = error->what();
  EXPECT_NE(text.find("/nowhere/tandem_mpi.so"), std::string::npos) << text;
  EXPECT_NE(text.find("apt-get install libopenmpi-dev"), std::string::npos) << text;
}

}  // namespace
}  // namespace tandem::training
