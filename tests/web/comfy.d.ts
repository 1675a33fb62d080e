// What ComfyUI's page serves at these addresses.
declare module "*/scripts/app.js" {
    export const app: import("@comfyorg/comfyui-frontend-types").ComfyApp
}
declare module "*/scripts/api.js" {
    export const api: import("@comfyorg/comfyui-frontend-types").ComfyApi
}
