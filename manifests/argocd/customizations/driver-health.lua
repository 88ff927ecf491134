-- What a driver lacks may be on its way in the same sync: it is waited for. What cannot be without it is said by the policies.
local status = obj.status or {}
for _, condition in ipairs(status.conditions or {}) do
  if condition.type == "Ready" and condition.observedGeneration == obj.metadata.generation then
    local health = condition.status == "True" and "Healthy" or "Progressing"
    return {status = health, message = condition.reason .. ": " .. condition.message}
  end
end
return {status = "Progressing", message = "the operator has not looked at this version of the driver yet"}
