-- Degraded fails a sync at once, so that is only what does not go on by itself. With argocd.argoproj.io/ignore-healthcheck no sync waits for
-- a roll-out: a policy is Healthy as soon as it can be carried out.
local status = obj.status or {}
if status.observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "the operator has not looked at this version of the policy yet"}
end
local said = {}
for _, condition in ipairs(status.conditions or {}) do
  said[condition.type] = condition
end
local ready = said.Ready or {status = "Unknown", reason = "Unknown", message = "the policy has no condition Ready"}
local accepted = said.Accepted ~= nil and said.Accepted.status == "True"
local ignored = (obj.metadata.annotations or {})["argocd.argoproj.io/ignore-healthcheck"] == "true"
local health = "Progressing"
if said.Stalled ~= nil then
  health = "Degraded"
elseif ready.status == "True" or ignored and accepted then
  health = "Healthy"
elseif ready.reason == "Paused" or ready.reason == "Frozen" then
  health = "Suspended"
end
local message = ready.reason .. ": " .. ready.message
local suspended = status.suspended
if suspended ~= nil and suspended.reason ~= ready.reason then
  message = message .. " (" .. suspended.reason .. ": " .. suspended.message .. ")"
end
return {status = health, message = message}
