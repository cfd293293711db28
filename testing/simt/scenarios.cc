#include "testing/simt/scenarios.h"

namespace stoker::testing::simt {
Scenario Smallest() {
  Scenario s;
  s.name = "Smallest";
  s.tokens = {1, 1, 1, 1};
  return s;
}

Scenario NoTokensBetween() {
  Scenario s;
  s.name = "NoTokensBetween";
  s.tokens = {1, 0, 1, 0, 0, 1};
  s.early_trigger = true;
  return s;
}

Scenario TwoClusters() {
  Scenario s;
  s.name = "TwoClusters";
  s.clusters = 2;
  s.tokens = {2, 2, 2, 2};
  return s;
}

Scenario TwoCtasACluster() {
  Scenario s;
  s.name = "TwoCtasACluster";
  s.cluster_size = 2;
  s.packets = 33;
  s.tokens = {4, 3};
  return s;
}

Scenario ThreeRanksInTwoShots() {
  Scenario s;
  s.name = "TwoShot";
  s.world = 3;
  s.clusters = 2;
  s.packets = 2;
  s.two_shot = true;
  s.tokens = {3, 2, 0, 4, 3};
  return s;
}

Scenario ResetBetweenLaunches() {
  Scenario s;
  s.name = "ResetBetweenLaunches";
  s.world = 3;
  s.clusters = 2;
  s.tokens = {2, 2, 1, 2, 2};
  s.residual_chain = false;
  s.reset_before = 2;
  return s;
}

}  // namespace stoker::testing::simt
