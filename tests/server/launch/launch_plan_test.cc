#include "server/launch/launch_plan.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "server/launch/kubernetes.h"
#include "server/launch/launch_manifest.h"
#include "server/launch/tool.h"
#include "tests/server/jobs/job_supervisor_fixture.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

LaunchPlan PlanOf(int64_t nodes, int64_t ranks) {
  LaunchPlan plan;
  plan.name = "sft-1";
  plan.spec = "/data/my spec.yaml";
  plan.overrides = {"steps=10", "prompt=it's $(id) `id`"};
  plan.nodes = nodes;
  plan.ranks_per_node = ranks;
  plan.dir = "/logs";
  return plan;
}

std::string WordAfter(const std::vector<std::string>& words, const std::string& name) {
  const auto at = std::find(words.begin(), words.end(), name);
  return at == words.end() || at + 1 == words.end() ? "" : at[1];
}

std::string FaultOfPlan(const LaunchPlan& plan) {
  try {
    CheckLaunchPlan(plan);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(LaunchPlan, OneRankNeedsNoLauncher) {
  EXPECT_EQ(MpirunWords(PlanOf(1, 1), {}),
            (std::vector<std::string>{"tandem", "train", "/data/my spec.yaml", "steps=10",
                                      "prompt=it's $(id) `id`"}));
  EXPECT_EQ(WordAfter(MpirunWords(PlanOf(1, 4), {}), "-n"), "4");
  const std::vector<std::string> hosts = MpirunWords(PlanOf(2, 3), {"a", "b"});
  EXPECT_EQ(WordAfter(hosts, "-n"), "6");
  EXPECT_EQ(WordAfter(hosts, "--host"), "a:3,b:3");
}

// Open MPI binds each of two ranks to one core, where all of its threads would run.
TEST(LaunchPlan, RanksAreNotBoundToACore) {
  EXPECT_EQ(WordAfter(MpirunWords(PlanOf(1, 2), {}), "--bind-to"), "none");
  EXPECT_EQ(WordAfter(MpirunWords(PlanOf(2, 1), {"a", "b"}), "--bind-to"), "none");
}

TEST(LaunchPlan, TheTokenFileReachesOneRankToo) {
  LaunchPlan plan = PlanOf(1, 1);
  plan.token_file = "/run/secrets/token";
  const std::vector<std::string> one = LocalWords(plan);
  EXPECT_EQ(one[0], "env");
  EXPECT_EQ(one[1], "HF_TOKEN_PATH=/run/secrets/token");
  EXPECT_EQ(one[2], "tandem");
  plan.ranks_per_node = 2;
  EXPECT_EQ(WordAfter(LocalWords(plan), "-x"), "HF_TOKEN_PATH=/run/secrets/token");
}

TEST(LaunchPlan, TokensOptionsAndNamesThatNoLauncherCarriesAreRefused) {
  LaunchPlan plan = PlanOf(1, 1);
  const std::string token = std::string("hf_") + "secretsecretsecretse";
  const std::string aws = std::string("AKIA") + "SECRETSECRETSECR";
  for (const std::string& word :
       {std::string("hf_access_token=x"), "token=" + token, token, "key=" + aws,
        "api=" + std::string("sk-") + "secretsecretsecretsecret",
        std::string("data=s3://user:") + "secretsecret@host/x"}) {
    plan.overrides = {word};
    EXPECT_NE(FaultOfPlan(plan).find("--token-file"), std::string::npos) << word;
    EXPECT_EQ(FaultOfPlan(plan).find("secretsecret"), std::string::npos);
  }
  for (const char* word : {"hf_path=parquet", "hf_train_files=/data/a.parquet", "eos_token=<eos>",
                           "base_output_directory=s3://bucket/run", "tokenizer_path=/data/hf_x"}) {
    plan.overrides = {word};
    EXPECT_EQ(FaultOfPlan(plan), "") << word;
  }
  for (const char* word : {"-x=1", "a\nb=1", "", "word"}) {
    plan.overrides = {word};
    EXPECT_NE(FaultOfPlan(plan), "") << word;
  }
  plan = PlanOf(1, 1);
  for (const char* name : {"", "A", "a b", "-a", "a;b"}) {
    plan.name = name;
    EXPECT_NE(FaultOfPlan(plan), "") << name;
  }
  EXPECT_NE(FaultOfPlan(PlanOf(0, 1)), "");
  EXPECT_NE(FaultOfPlan(PlanOf(65536, 65536)), "");
}

TEST(SbatchScript, IsAShellScriptWhoseWordsStayWords) {
  const TemporaryDir dir;
  const std::string script = SbatchScript(PlanOf(2, 2), {"--partition=long"});

  EXPECT_NE(script.find("#SBATCH --nodes=2\n#SBATCH --ntasks=4\n"), std::string::npos);
  EXPECT_NE(script.find("#SBATCH --partition=long\n"), std::string::npos);
  // srun prints its words, and the job is queued again for exit code 75 alone.
  for (const int code : {0, 75, 1}) {
    WriteScript(dir / "srun", {"printf '%s\\n' \"$@\"", "exit " + std::to_string(code)});
    WriteScript(dir / "scontrol", {"echo scontrol $*"});
    WriteScript(dir / "squeue", {"echo RUNNING"});
    const std::string path = "PATH='" + (dir / "").string() + "':$PATH; SLURM_JOB_ID=7; ";
    const ToolResult done = RunTool({"sh", "-c", path + script});
    EXPECT_EQ(done.code, code);
    EXPECT_EQ(done.out,
              "--mpi=pmix\n--kill-on-bad-exit=1\ntandem\ntrain\n/data/my spec.yaml\nsteps=10\n"
              "prompt=it's $(id) `id`\n" +
                  std::string(code == 75 ? "scontrol requeue 7\n" : ""));
  }
}

TEST(SbatchScript, ATermSignalReachesTheRanksAndQueuesTheJobAgain) {
  const TemporaryDir dir;
  WriteScript(dir / "srun", {"trap 'exit 75' TERM", "echo $$ > \"$(dirname \"$0\")/ranks\"",
                             "kill -TERM $PPID", "while :; do sleep 0.01; done"});
  WriteScript(dir / "scancel",
              {"echo scancel $*", "kill -TERM $(cat \"$(dirname \"$0\")/ranks\")"});
  WriteScript(dir / "squeue", {"echo RUNNING"});
  WriteScript(dir / "scontrol", {"echo scontrol $*"});
  WriteFile(dir / "script", SbatchScript(PlanOf(1, 1), {}));
  const ToolResult done = RunTool({"env", "PATH=" + (dir / "").string() + ":" + ::getenv("PATH"),
                                   "SLURM_JOB_ID=7", "sh", (dir / "script").string()});

  EXPECT_EQ(done.code, 75);
  EXPECT_EQ(done.out, "scancel --signal=TERM 7\nscontrol requeue 7\n");
}

TEST(SbatchScript, KilledRanksQueueTheJobAgainALimitedNumberOfTimes) {
  const TemporaryDir dir;
  WriteScript(dir / "srun", {"exit 137"});
  WriteScript(dir / "squeue", {"echo RUNNING"});
  WriteScript(dir / "scontrol", {"echo scontrol $*"});
  WriteFile(dir / "script", SbatchScript(PlanOf(1, 1), {}));
  const auto run = [&](const char* restarts) {
    return RunTool({"env", "PATH=" + (dir / "").string() + ":" + ::getenv("PATH"), "SLURM_JOB_ID=7",
                    std::string("SLURM_RESTART_COUNT=") + restarts, "sh",
                    (dir / "script").string()});
  };

  EXPECT_EQ(run("").out, "scontrol requeue 7\n");
  EXPECT_EQ(run("9").out, "scontrol requeue 7\n");
  EXPECT_EQ(run("10").out, "");
  EXPECT_EQ(run("10").code, 137);
}

// A job that its owner has cancelled ends its ranks in the same way.
TEST(SbatchScript, ACancelledJobIsNotQueuedAgain) {
  const TemporaryDir dir;
  WriteScript(dir / "scontrol", {"echo scontrol $*"});
  WriteFile(dir / "script", SbatchScript(PlanOf(1, 1), {}));
  for (const char* code : {"75", "137"}) {
    for (const char* squeue :
         {"[ \"$*\" = '--noheader --jobs=7 --format=%T' ] && echo COMPLETING", "exit 1", ":"}) {
      WriteScript(dir / "srun", {std::string("exit ") + code});
      WriteScript(dir / "squeue", {squeue});
      const ToolResult done =
          RunTool({"env", "PATH=" + (dir / "").string() + ":" + ::getenv("PATH"), "SLURM_JOB_ID=7",
                   "sh", (dir / "script").string()});
      EXPECT_EQ(done.out, "") << code << squeue;
      EXPECT_EQ(done.code, std::stoi(code));
    }
  }
}

TEST(SbatchScript, SrunGetsTheProcessorsOfATask) {
  const TemporaryDir dir;
  WriteScript(dir / "srun", {"echo \"cpus ${SRUN_CPUS_PER_TASK-unset}\""});
  WriteFile(dir / "script", SbatchScript(PlanOf(1, 1), {"--cpus-per-task=8"}));
  const auto run = [&](const char* cpus) {
    return RunTool({"env", "-u", "SRUN_CPUS_PER_TASK",
                    "PATH=" + (dir / "").string() + ":" + ::getenv("PATH"), "SLURM_JOB_ID=7", cpus,
                    "sh", (dir / "script").string()})
        .out;
  };

  EXPECT_EQ(run("SLURM_CPUS_PER_TASK=8"), "cpus 8\n");
  EXPECT_EQ(run("OTHER=8"), "cpus unset\n");
}

TEST(SbatchScript, OptionsCannotAddLines) {
  for (const char* bad : {"--wrap=id", "--comment=a b", "--comment=a\n#SBATCH --x", "-p long"}) {
    EXPECT_THROW(SbatchScript(PlanOf(1, 1), {bad}), Error) << bad;
  }
}

TEST(Hosts, AreNamesAndNoOptions) {
  EXPECT_EQ(ParseHosts("a slots=4\n# comment\n\nuser@b.example # x\n"),
            (std::vector<std::string>{"a", "user@b.example"}));
  EXPECT_EQ(ParseHosts("a,b"), (std::vector<std::string>{"a", "b"}));
  for (const char* bad : {"", "-oProxyCommand=id", "a;id", "$(id)", "a,a", "a\n-b"}) {
    EXPECT_THROW(ParseHosts(bad), Error) << bad;
  }
}

// A host may be this machine, where the file is its own copy.
TEST(Hosts, ACopyReplacesAFileByARename) {
  const TemporaryDir dir;
  const std::string old_path = ::getenv("PATH");
  ::setenv("PATH", ((dir / "").string() + ":" + old_path).c_str(), 1);
  WriteScript(dir / "ssh",
              {"[ \"$5\" != down ] || { echo 'no route' >&2; exit 255; }", "eval \"$7\""});
  // As scp does, it empties the target before it reads the source.
  WriteScript(dir / "scp", {"target=${6#*:}", ": > \"$target\"", "cat \"$5\" > \"$target\""});
  const std::string file = dir / "it's a spec.yaml";
  WriteFile(file, "steps: 1");

  CopyToHosts({"here"}, {file});
  std::string fault;
  try {
    CopyToHosts({"down"}, {file});
  } catch (const Error& error) {
    fault = error.what();
  }
  ::setenv("PATH", old_path.c_str(), 1);

  EXPECT_EQ(FileText(file), "steps: 1");
  EXPECT_FALSE(std::filesystem::exists(file + ".tandem-new"));
  EXPECT_EQ(fault, "could not copy " + file + " to down: no route");
}

TEST(Hosts, ADifferentProgramOrKernelIsNamed) {
  const TemporaryDir dir;
  const std::string old_path = ::getenv("PATH");
  ::setenv("PATH", ((dir / "").string() + ":" + old_path).c_str(), 1);
  // The fifth word is the host, the seventh the remote command.
  WriteScript(dir / "ssh", {"[ \"$7\" = \"'/opt/my tandem' launch probe\" ] || exit 9",
                            "case $5 in", "  down) echo 'no route' >&2; exit 255;;",
                            "  old) kernels=avx512;;", "  *) kernels=avx512+bf16+vnni;;", "esac",
                            R"(printf '{"version":"1","sha256":"aa","kernels":"%s"}' $kernels)"});
  const HostProbe own = {"1", "aa", "avx512+bf16+vnni"};

  EXPECT_NO_THROW(CheckHosts({"a", "b"}, "/opt/my tandem", own));
  std::string fault;
  try {
    CheckHosts({"a", "old", "down"}, "/opt/my tandem", own);
  } catch (const Error& error) {
    fault = error.what();
  }
  ::setenv("PATH", old_path.c_str(), 1);
  EXPECT_EQ(fault,
            "old: kernels is 'avx512' and not avx512+bf16+vnni\n"
            "down: could not run /opt/my tandem: no route");
}

TEST(XpkCommand, TheWordsOfTheSeedBecomeOverrides) {
  LaunchPlan plan;
  plan.spec = "/etc/tandem/sft.yaml";
  ReadXpkCommand(
      "python3 -m MaxText.sft.sft_trainer src/MaxText/configs/sft.yml run_name=sft-1 "
      "model_name=gemma2-2b train_data_columns=\"['messages']\" steps=1000",
      plan);
  EXPECT_EQ(plan.spec, "/etc/tandem/sft.yaml");
  EXPECT_EQ(plan.overrides,
            (std::vector<std::string>{"run_name=sft-1", "model_name=gemma2-2b",
                                      "train_data_columns=['messages']", "steps=1000"}));

  LaunchPlan own;
  ReadXpkCommand("/opt/tandem train spec.yaml steps=2", own);
  EXPECT_EQ(own.spec, "spec.yaml");
  EXPECT_EQ(own.program, "/opt/tandem");

  for (const char* bad :
       {"JAX_PLATFORMS=proxy python3 -m MaxText.sft.sft_trainer c.yml",
        "tandem train s.yaml enable_single_controller=True", "tandem train s.yaml; id",
        "tandem train s.yaml x=$HOME", "bash -c id", "tandem train 's",
        "tandem train s.yaml x=\"$HOME\"", "tandem train s.yaml x=\\", "nottandem train s.yaml x=1",
        "python3 -m MaxText.sft.sft_trainer c.yml"}) {
    LaunchPlan none;
    EXPECT_THROW(ReadXpkCommand(bad, none), Error) << bad;
  }
}

TEST(XpkCommand, ABackslashEscapesAsInAShell) {
  LaunchPlan plan;
  ReadXpkCommand("tandem train my\\ spec.yaml \\\n a=\"say \\\"hi\\\" \\$5 \\n\" b='\\n' c=\\'d",
                 plan);
  EXPECT_EQ(plan.spec, "my spec.yaml");
  EXPECT_EQ(plan.overrides, (std::vector<std::string>{"a=say \"hi\" $5 \\n", "b=\\n", "c='d"}));
}

TEST(XpkCommand, ModulesThatDoNotTrainAreRefused) {
  for (const char* module : {"MaxText.decode", "MaxText.train_compile", "MaxText.rl.train_rl"}) {
    LaunchPlan plan;
    plan.spec = "sft.yaml";
    ExpectError(ErrorCode::kInvalidArgument, {module, "MaxText.sft.sft_trainer"}, [&] {
      ReadXpkCommand(std::string("python3 -m ") + module + " base.yml steps=1", plan);
    });
  }
}

TEST(XpkCommand, TwoSpecsAreRefused) {
  LaunchPlan plan;
  plan.spec = "a.yaml";
  ExpectError(ErrorCode::kInvalidArgument, {"a.yaml", "b.yaml"},
              [&] { ReadXpkCommand("tandem train b.yaml steps=1", plan); });
  EXPECT_NO_THROW(ReadXpkCommand("tandem train a.yaml steps=1", plan));
}

std::vector<std::string> CommandOf(const Json& mpi_job) {
  return mpi_job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
                ["command"];
}

// sshd starts the ranks of an MPIJob, and it passes no variable of the container on.
TEST(LaunchManifest, TheRanksGetTheTokenOfASecret) {
  LaunchPlan plan = PlanOf(2, 1);
  plan.overrides = {"steps=10"};
  ManifestOptions options;
  options.image = "registry/trainer:1";
  options.token_secret = "huggingface-token";
  EXPECT_EQ(WordAfter(CommandOf(Json::parse(LaunchManifest(plan, options))), "-x"),
            "HF_TOKEN_PATH=/run/secrets/huggingface/token");
}

TEST(LaunchManifest, AJobEndsAtAnExitThatIsFinal) {
  LaunchPlan plan = PlanOf(1, 1);
  plan.overrides = {"steps=10"};
  ManifestOptions options;
  options.kind = ManifestKind::kJob;
  options.image = "registry/trainer:1";
  const Json rules =
      Json::parse(LaunchManifest(plan, options))["spec"]["podFailurePolicy"]["rules"];
  ASSERT_EQ(rules.size(), 3u);
  EXPECT_EQ(rules[0]["action"], "Ignore");
  EXPECT_EQ(rules[2]["action"], "FailJob");
  EXPECT_EQ(rules[2]["onExitCodes"]["operator"], "NotIn");
  EXPECT_EQ(rules[2]["onExitCodes"]["values"], Json({75, 137, 143}));
}

TEST(LaunchManifest, KindsWithoutALauncherHaveOneNode) {
  LaunchPlan plan = PlanOf(2, 2);
  plan.overrides = {"steps=10"};
  ManifestOptions options;
  options.image = "registry/trainer:1";

  options.kind = ManifestKind::kMpiJob;
  const Json mpi = Json::parse(LaunchManifest(plan, options));
  EXPECT_EQ(mpi["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"], 2);
  EXPECT_EQ(WordAfter(CommandOf(mpi), "-n"), "4");
  options.kind = ManifestKind::kJobSet;
  EXPECT_THROW(LaunchManifest(plan, options), Error);
  plan.overrides = {"x=$(TOKEN)"};
  plan.nodes = 1;
  EXPECT_THROW(LaunchManifest(plan, options), Error);
}

TEST(KubernetesOptions, NeedAnImageAndAVolume) {
  const KubernetesOptions options =
      ParseKubernetesOptions({"--image=i", "--claim=c", "--mount=/data", "--queue=q"});
  const JobStart job = {"job-1", "train", "/data/jobs/job-1", "/data/jobs/job-1/log.txt"};
  const Json manifest = Json::parse(KubernetesCluster(options).Manifest(job));

  EXPECT_EQ(manifest["spec"]["template"]["spec"]["containers"][0]["args"],
            Json({"launch", "job", "--dir", "/data/jobs/job-1", "--verb", "train"}));
  EXPECT_EQ(manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "q");
  EXPECT_TRUE(manifest["spec"]["suspend"]);
  for (const std::vector<std::string>& bad :
       std::vector<std::vector<std::string>>{{"--image=i"},
                                             {"--image=i", "--claim=c", "--mount=data"},
                                             {"--image=i", "--image=j"},
                                             {"--other=1"},
                                             {"--image="}}) {
    EXPECT_THROW(ParseKubernetesOptions(bad), Error);
  }
}

// A false cluster: objects are files, and the pod runs when kubectl creates the object.
class KubernetesTest : public JobSupervisorTest {
 protected:
  KubernetesTest() : old_path_(::getenv("PATH")) {
    std::filesystem::create_directories(dir_ / "bin");
    std::filesystem::create_directories(dir_ / "objects");
    const std::string base = "base='" + dir_.path().string() + "'";
    WriteScript(
        dir_ / "bin" / "kubectl",
        {base, "echo \"$*\" >> \"$base/calls\"", "case \"$*\" in", "  *create*)",
         "    cat > \"$base/objects/tandem-1\"",
         "    dir=$(sed -n 's/^ *\"\\(.*jobs\\/job-[0-9a-f]*\\)\",*$/\\1/p' "
         "\"$base/objects/tandem-1\")",
         "    ( trap 'kill -TERM $pod 2>/dev/null' TERM", "    \"$base/machine\" \"$dir\" & pod=$!",
         "    echo $pod > \"$base/pid\"",
         "    wait $pod; rm -f \"$base/objects/tandem-1\" \"$base/pid\" ) >/dev/null 2>&1 &",
         "    echo job.batch/tandem-1;;", "  *'get jobs'*)",
         "    instance=$(printf %s \"$*\" | sed -n 's/.* in (\\([^,)]*\\).*/\\1/p')",
         "    [ ! -e \"$base/objects/tandem-1\" ] || echo \"tandem-1|$instance|1||\";;",
         "  *delete*job*tandem-1*)",
         "    [ ! -e \"$base/pid\" ] || kill -TERM \"$(cat \"$base/pid\")\";;", "esac", "exit 0"});
    WriteScript(
        dir_ / "machine",
        {"trap 'kill -TERM $child' TERM",
         "'" + (dir_ / "script").string() +
             "' train --job \"$1\" >> \"$1/log.txt\" 2>&1 & child=$!",
         "wait $child; code=$?", "while kill -0 $child 2>/dev/null; do wait $child; code=$?; done",
         "printf '{\"code\":%d}' $code > \"$1/exit.tmp\" && mv \"$1/exit.tmp\" \"$1/exit.json\""});
    ::setenv("PATH", ((dir_ / "bin").string() + ":" + old_path_).c_str(), 1);
    StartSupervisor([&](JobSupervisorOptions& change) {
      change.runner = std::make_shared<ClusterRunner>(
          std::make_shared<KubernetesCluster>(
              ParseKubernetesOptions({"--image=i", "--claim=c", "--mount=/data", "--namespace=n"})),
          milliseconds(5));
    });
  }
  ~KubernetesTest() override {
    supervisor_.reset();
    ::setenv("PATH", old_path_.c_str(), 1);
  }

  std::string old_path_;
};

TEST_F(KubernetesTest, AJobRunsAndItsObjectIsDeleted) {
  Script({kCountRuns, kSucceed});

  const Job ended = WaitForEndOf(Submit(), JobStatus::kSucceeded);

  EXPECT_EQ(Runs(ended), 1u);
  const std::string calls = FileText(dir_ / "calls");
  EXPECT_NE(calls.find("--namespace=n create --filename=- --output=name"), std::string::npos);
  EXPECT_NE(calls.find("--wait=false --cascade=foreground job tandem-1"), std::string::npos)
      << calls;
}

TEST_F(KubernetesTest, CancellingDeletesTheObjectAndTheJobEnds) {
  Script({kStopOnTerm, kCountRuns, kWaitForGo, kSucceed});
  const Job job = Submit();
  WaitForFirstRun(job);

  supervisor_->Cancel(job.id);

  WaitForEndOf(job, JobStatus::kCancelled);
  EXPECT_TRUE(WaitFor([&] { return !std::filesystem::exists(dir_ / "objects" / "tandem-1"); }));
}

}  // namespace
}  // namespace tandem::server
